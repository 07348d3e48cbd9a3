"""Claims in the report: how many there are of each verdict, and each beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedgram.paper.claims import MEANINGS

VERDICTS = {
    "match": "matched",
    "miss": "missed",
    "partial": "partial",
    "not comparable": "not comparable",
    "not run": "not run",
}

SO_FAR = {True: "agrees so far", False: "disagrees so far", None: "undecided"}

ABSENT = "whose results are not in this folder ('fedgram reproduce ufm' makes them, in six minutes)"
"""What is said of the claims about the exact model where none of it was run."""

Document = Mapping[str, Any]
"""A claim as `Judged.document` gives it."""


def counts_of(claims: Iterable[Document]) -> dict[str, int]:
    """How many claims there are of each verdict; runs that cannot be compared only where there are such."""
    found = Counter(claim["verdict"] for claim in claims)
    return {name: found[name] for name in VERDICTS if found[name] or name != "not comparable"}


def summary(claims: Sequence[Document]) -> str:
    """One sentence: '80 of 120 claims matched, 3 missed, 20 partial (18 agree so far), 17 not run'."""
    counts = counts_of(claims)
    matched = f"{counts['match']:,} of {len(claims):,} claims matched"
    missed = [f"{counts['miss']:,} missed"] if counts["miss"] else []
    so_far = sum(claim["verdict"] == "partial" and claim.get("agrees") is True for claim in claims)
    partial = f"{counts['partial']:,} partial" + (f" ({so_far:,} agree so far)" if so_far else "")
    others = [f"{counts[name]:,} {name}" for name in ("not comparable", "not run") if name in counts]
    return ", ".join([matched, *missed, partial, *others])


def sentences(exact: Sequence[Document], networks: Sequence[Document]) -> str:
    """The counts of the exact model and of networks, a sentence each; without the last full stop."""
    about_exact = summary(exact) if _any_run(exact) else f"{len(exact):,} claims, {ABSENT}"
    return f"Exact model: {about_exact}. Networks: {summary(networks)}"


def tile_rows(exact: Sequence[Document], networks: Sequence[Document]) -> str:
    """A headed row of tiles for the exact model, unless nothing of it was run, and one for networks."""
    about_exact = _headed("Exact model", tiles(exact)) if _any_run(exact) else ""
    return about_exact + _headed("Networks", tiles(networks))


def tiles(claims: Sequence[Document]) -> str:
    """The counts as large numbers; partial claims by whether what was run agrees."""
    counts = []
    for verdict, n in counts_of(claims).items():
        partial = _so_far(claims) if verdict == "partial" else []
        counts += partial or [(_style(verdict), VERDICTS[verdict], n)]
    return "".join(f'<div class="tile {style}"><b>{n:,}</b>{words}</div>' for style, words, n in counts)


def _so_far(claims: Sequence[Document]) -> list[tuple[str, str, int]]:
    """Style, words and number of the partial claims that agree so far, disagree, or cannot be decided."""
    found = Counter(claim.get("agrees") for claim in claims if claim["verdict"] == "partial")
    kinds = {
        True: ("partial", "agree so far"),
        False: ("against", "disagree so far"),
        None: ("partial", "undecided"),
    }
    return [
        (style, f"partial, {words}", found[agrees])
        for agrees, (style, words) in kinds.items()
        if found[agrees]
    ]


def legend() -> str:
    """What the words in the column 'compared' mean, in a sentence."""
    words = "; ".join(f"<b>{name}</b>: {escape(meaning)}" for name, meaning in MEANINGS.items())
    draws = "Where the paper's draws cannot be repeated, its number is looked for in the spread of our own."
    return f"How ours is compared: {words}. {draws}"


def in_words(claims: Iterable[Document]) -> str:
    """The counts that are not zero, in a line."""
    return ", ".join(
        f"{number} {VERDICTS[verdict]}" for verdict, number in counts_of(claims).items() if number
    )


def claims_table(claims: Iterable[Document]) -> str:
    """Every claim with its place, the paper's number, ours, and the verdict."""
    rows = "".join(_row(claim) for claim in claims)
    return f"""<div class="scroll"><table class="claims"><thead><tr><th>claim</th><th>where</th><th>paper</th>
<th>ours</th><th>compared</th><th>verdict</th></tr></thead><tbody>
{rows}</tbody></table></div>"""


def _row(claim: Document) -> str:
    reason = f"<small>{escape(claim['reason'])}</small>" if claim["reason"] else ""
    cells = "".join(f"<td>{escape(claim[key])}</td>" for key in ("where", "paper", "ours", "comparison"))
    verdict = claim["verdict"]
    style = "against" if _disagrees(claim) else _style(verdict)
    so_far = f", {SO_FAR[claim.get('agrees')]}" if verdict == "partial" else ""
    judged = f'<td class="{style}">{verdict}{so_far}</td>'
    return f"<tr><td>{escape(claim['says'])}{reason}</td>{cells}{judged}</tr>\n"


def _any_run(claims: Iterable[Document]) -> bool:
    return any(claim["verdict"] != "not run" for claim in claims)


def _headed(heading: str, content: str) -> str:
    return f"<h4>{heading}</h4>{content}"


def _disagrees(claim: Document) -> bool:
    return claim["verdict"] == "partial" and claim.get("agrees") is False


def _style(verdict: str) -> str:
    return verdict.replace(" ", "-")
