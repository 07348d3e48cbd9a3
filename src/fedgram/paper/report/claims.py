"""Counts, summaries and table rows of claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VERDICTS = {
    "match": "matched",
    "compatible": "compatible",
    "miss": "missed",
    "partial": "partial",
    "not comparable": "not comparable",
    "not run": "not run",
}
RARE = ("compatible", "not comparable")
STYLES = {
    "miss": "missed",
    "against": "disagree so far",
    "partial": "partial",
    "not-comparable": "not comparable",
    "compatible": "compatible",
    "match": "matched",
}
RANKS = list(STYLES)
AGREEMENT = {True: "agrees so far", False: "disagrees so far", None: "undecided"}

Document = Mapping[str, Any]
"""A claim as `Judged.document` returns it."""


def count_verdicts(claims: Iterable[Document]) -> dict[str, int]:
    """Count claims by verdict; 'compatible' and 'not comparable' only if there are such claims."""
    found = Counter(claim["verdict"] for claim in claims)
    return {name: found[name] for name in VERDICTS if found[name] or name not in RARE}


def list_counts(claims: Iterable[Document]) -> str:
    """Format the counts that are not zero: '3 matched, 2 not run'."""
    counts = count_verdicts(claims).items()
    return ", ".join(f"{count} {VERDICTS[verdict]}" for verdict, count in counts if count)


def summarize(claims: Sequence[Document]) -> str:
    """Format '80 of 120 claims matched, 3 missed, 20 partial (18 agree so far), 17 not run'."""
    counts = count_verdicts(claims)
    agree = sum(claim["verdict"] == "partial" and claim.get("agrees") is True for claim in claims)
    parts = [f"{counts['match']:,} of {len(claims):,} claims matched"]
    parts += [f"{counts[name]:,} {VERDICTS[name]}" for name in ("compatible", "miss") if counts.get(name)]
    parts += [f"{counts['partial']:,} partial" + (f" ({agree:,} agree so far)" if agree else "")]
    parts += [f"{counts[name]:,} {name}" for name in ("not comparable", "not run") if name in counts]
    return ", ".join(parts)


def summarize_all(exact: Sequence[Document], networks: Sequence[Document]) -> str:
    """Summarize the claims about the exact model and about networks, without the final full stop."""
    of_exact = _summarize_if_run(exact, "'fedgram reproduce ufm' takes six minutes")
    of_networks = _summarize_if_run(networks, "'fedgram reproduce list' has the experiments")
    return f"Exact model: {of_exact}. Networks: {of_networks}"


def _summarize_if_run(claims: Sequence[Document], remedy: str) -> str:
    is_run = any(claim["verdict"] != "not run" for claim in claims)
    return summarize(claims) if is_run else f"no claim compared yet ({remedy})"


def make_rows(experiment: str, claims: Iterable[Document]) -> list[dict[str, Any]]:
    """Rows of the claim table, without claims that nothing was run for.

    rank: the order of verdicts, the worst first.
    """
    return [
        {
            **claim,
            "experiment": experiment,
            "style": _style(verdict := claim["verdict"], agrees := claim.get("agrees")),
            "judgment": f"partial, {AGREEMENT[agrees]}" if verdict == "partial" else verdict,
            "rank": RANKS.index(_style(verdict, agrees)),
            "deviation": claim.get("deviation"),
        }
        for claim in claims
        if claim["verdict"] != "not run"
    ]


def count_styles(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
    """Text and number of the rows of each kind of verdict, in the order of the table."""
    counts = Counter(row["style"] for row in rows)
    return {style: (STYLES[style], counts[style]) for style in RANKS if counts[style]}


def _style(verdict: str, agrees: bool | None = None) -> str:
    return "against" if verdict == "partial" and agrees is False else verdict.replace(" ", "-")
