"""Write the tables of REPRODUCTION.md from the results in `results/`.

    python benchmarks/reproduction_page.py

DISAGREEMENTS in `reproduction_claims.py` must list exactly the claims that disagree, with their causes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark_pages import markdown_table, replace_between
from fedgram._util.errors import InputError
from fedgram.paper.claims import FACTORS
from fedgram.paper.networks.agreement import Agreement, measure_agreement, measure_ratios
from fedgram.paper.networks.results import Result, Results, RunKey
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import TABULAR, Source
from fedgram.paper.networks.studies.registry import Study
from fedgram.paper.report.networks import NetworkChapter, load_results, make_chapters
from fedgram.runs.procedure import Procedure
from reproduction_claims import AGREEMENTS, DISAGREEMENTS, NETWORKS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "REPRODUCTION.md"
PREACTIVATED = "preactivated"
BREAK = ",<br>"  # browsers would break a line within 1e-4


def main() -> None:
    for name, text in tables().items():
        replace_between(PAGE, name, text)


def tables() -> dict[str, str]:
    """All generated parts of the page by the name of their markers."""
    results = load_results(ROOT / "results")
    chapters = load_chapters(results)
    claims = {claim["id"]: claim for chapter in chapters for claim in chapter.claims}
    return {
        "agreement": agreement(results, chapters),
        "networks": networks(results),
        "agrees": agreeing(claims),
        "disagrees": disagreeing(claims),
    }


def agreement(results: Results, chapters: Sequence[NetworkChapter]) -> str:
    """Count runs and claims about networks, and the paper's numbers within several factors of ours."""
    claims = [claim for chapter in chapters for claim in chapter.claims]
    rows = [("runs at the paper's scale", count_runs(chapters), "")]
    for label, verdict, agrees in (
        ("claims that match, with all runs", "match", True),
        ("claims that agree so far", "partial", True),
        ("claims that disagree so far", "partial", False),
        ("claims that are missed", "miss", False),
    ):
        found = [claim for claim in claims if (claim["verdict"], claim["agrees"]) == (verdict, agrees)]
        statements = sum(claim["comparison"] in ("always", "overall") for claim in found)
        rows.append((label, str(len(found) - statements), str(statements)))
    ratios = {row.label: row for row in measure_agreement(results) if row.ratios}
    title = "numbers of the paper that depend on training"
    counts = markdown_table(("networks", "numbers", "statements"), rows)
    return f"{counts}\n{tabulate_agreement(title, ratios)}"


def networks(results: Results) -> str:
    """Compare the runs that two networks have in common with the paper."""
    other = Results(run for run in results.select(scale=PREACTIVATED) if run.setting in TABULAR)
    known = {identify(run) for run in other}
    same = Results(run for run in results.select(scale="paper") if identify(run) in known)
    if len(same) < len(other):
        raise InputError("Some pre-activated runs have no counterpart to compare them with.", field="results")
    names = {"as built in": (same, "paper"), "pre-activated": (other, PREACTIVATED)}
    rows = {name: measure_agreement(runs, scale)[0] for name, (runs, scale) in names.items()}
    counts = tabulate_agreement(f"the same {len(other)} runs with another network", rows)
    ratios = [{claim.id: ratio for claim, ratio in measure_ratios(runs).items()} for runs in (same, other)]
    factors = [(label, *(f"{each[claim]:.2g}" for each in ratios)) for label, claim in NETWORKS.items()]
    headings = ("our median over the paper's", *names)
    return f"{counts}\n{markdown_table(headings, factors)}"


def identify(run: Result) -> tuple[str, Procedure, int, int, int]:
    """What two networks must share for a comparison."""
    return run.setting, run.procedure, run.seed, run.epochs, run.rounds


def tabulate_agreement(title: str, agreements: Mapping[str, Agreement]) -> str:
    """Count the paper's numbers within several factors of ours."""
    headings = (title, "compared", *(f"within {factor:.3g}" for factor in FACTORS))
    rows = [(label, str(len(row.ratios)), *map(str, row.counts)) for label, row in agreements.items()]
    return markdown_table(headings, rows)


def agreeing(claims: Mapping[str, Any]) -> str:
    """Medians beside the paper's, with how many of its runs ours have."""
    for name in (name for names in AGREEMENTS.values() for name in names):
        if not claims[name].get("agrees"):
            raise InputError(f"The claim '{name}' does not agree. Move it to DISAGREEMENTS.", field="claims")
    rows = [
        (label, *_compare(shown := [claims[name] for name in names]), _list_factors(shown, "deviation"),
         _count_claimed(claims[names[0]]))
        for label, names in AGREEMENTS.items()
    ]  # fmt: skip
    return markdown_table(("quantity, medians", "ours", "paper", "factor", "our runs"), rows)


def disagreeing(claims: Mapping[str, Any]) -> str:
    """Claims that disagree or are missed, by cause."""
    found = {name for name, claim in claims.items() if claim.get("agrees") is False}
    listed = {name for each in DISAGREEMENTS.values() for name in each.claims}
    if found != listed:
        names = ", ".join(sorted(found ^ listed))
        raise InputError(f"DISAGREEMENTS and the claims that disagree differ in: {names}.", field="claims")
    rows = [
        (
            what,
            str(len(each.claims)),
            *_compare(shown := [claims[name] for name in each.claims[: each.shown]]),
            _list_factors(shown, "least_deviation"),
            each.cause,
        )
        for what, each in DISAGREEMENTS.items()
    ]
    return markdown_table(("what", "claims", "ours", "paper", "at least", "cause"), rows)


def load_chapters(results: Results) -> list[NetworkChapter]:
    """Chapters of the paper's experiments."""
    return [chapter for chapter in make_chapters(results) if chapter.study.where != "ours"]


def count_runs(chapters: Sequence[NetworkChapter]) -> str:
    """Count the paper's runs that are done, of all."""
    done = {run.key for chapter in chapters for run in chapter.results.get("paper", ())}
    wanted = {key for chapter in chapters for key in _list_wanted(chapter.study)}
    return f"{len(done)} of {len(wanted)}"


def _list_wanted(study: Study) -> list[RunKey]:
    sources = {variety: Source("any") for variety in study.varieties}
    return study.keys(SCALES["paper"], sources)


def _compare(claims: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Our values and the paper's, two digits each."""
    ours, papers = (BREAK.join(_shorten(str(claim[name])) for claim in claims) for name in ("ours", "paper"))
    return ours, "holds" if papers in ("always", "overall") else papers


def _list_factors(claims: Sequence[Mapping[str, Any]], kind: str) -> str:
    """Factors between ours and the paper's, where they are known."""
    factors = [claim.get(kind) for claim in claims]
    return BREAK.join(_format(factor) for factor in factors if factor is not None)


def _shorten(text: str) -> str:
    """Round the numbers of a text to two digits."""
    return re.sub(
        r"\d[\d,]*\.?\d*(e[-+]?\d+)?", lambda found: _format(float(found[0].replace(",", ""))), text
    )


def _format(value: float) -> str:
    """Two digits: 1,000, 0.29, 9.3e-5."""
    if value >= 0.01:
        return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}e{int(power)}"


def _count_claimed(claim: Mapping[str, Any]) -> str:
    """How many of the paper's runs a claim has: '10 of 50', or 'all'."""
    found = re.match(r"(\d+ of \d+) runs", claim["reason"])
    return found[1] if found else "all"


if __name__ == "__main__":
    main()
