"""Write the tables of REPRODUCTION.md from the results in `results/`.

    python benchmarks/reproduction_page.py

DISAGREEMENTS in `reproduction_claims.py` must list exactly the claims that disagree, with their causes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmark_pages import markdown_table, replace_between
from fedgram._util.errors import InputError
from fedgram._util.text import describe_seeds
from fedgram.paper.claims import FACTORS
from fedgram.paper.networks import metrics
from fedgram.paper.networks.agreement import Agreement, measure_agreement, measure_ratios
from fedgram.paper.networks.results import Result, Results, RunKey
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies.registry import Study
from fedgram.paper.report.networks import NetworkChapter, load_results, make_chapters
from fedgram.runs.procedure import Procedure
from reproduction_claims import AGREEMENTS, COVERAGE, DISAGREEMENTS, MAIN, NETWORKS, Trained

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "REPRODUCTION.md"
AGENTS = {"swimmer": "Swimmer", "hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker": "Walker"}
TABULAR = {"beijing": "Beijing (REAL)", **AGENTS}
IMAGES = {"cifar-geo": "CIFAR-geo (REAL)", "dsprites": "sprites"}
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
    # The reduced scale has the paper's protocol with E = 400.
    by_key = {run.key: run for run in results if run.scale in ("paper", "reduced") and not run.larger}
    runs = list(by_key.values())
    return {
        "coverage": coverage(runs),
        "agreement": agreement(results, chapters),
        "networks": networks(results),
        "agrees": agreeing(claims),
        "disagrees": disagreeing(claims),
        "possible": possible(claims),
        "seeds": seed_ranges(runs),
    }


def coverage(runs: Sequence[Result]) -> str:
    """Seeds that have every run of a row, by setting."""
    settings = TABULAR | IMAGES
    rows = []
    for label, trained in COVERAGE.items():
        cells = [_common_seeds(runs, setting, trained) for setting in settings]
        rows.append((label, *(describe_seeds(seeds).split(" ", 1)[1] if seeds else "" for seeds in cells)))
    return markdown_table(("seeds that were run", *settings.values()), rows)


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


def possible(claims: Mapping[str, Any]) -> str:
    """Say which medians of more than half of the runs the missing runs can still make the paper's."""
    least = sorted(
        float(claim["least_deviation"])
        for claim in claims.values()
        if _count_claimed(claim) != "all" and claim["possible"] and claim["possible"][1] is not None
    )
    same, beyond = least.count(1.0), ", ".join(_format(factor) for factor in least if factor > 1)
    return (
        f"Of {len(least)} medians that have more than half of their runs, {same} can still become equal to "
        f"the paper's.\nThe other {len(least) - same} differ from it by at least these factors: {beyond}.\n"
    )


def seed_ranges(runs: Sequence[Result]) -> str:
    """Endpoint errors over all seeds, and the largest factors between seeds."""
    rows, factors = [], {}
    for name in MAIN:
        cells = []
        for setting, title in TABULAR.items():
            errors = _endpoints(runs, setting, name)
            cells.append(_format_range(errors))
            factors[f"{name.replace('+', ', ')} on {title.removesuffix(' (REAL)')}"] = max(errors) / min(
                errors
            )
        rows.append((f"{name.replace('+', ', ')}, to the {_target(name)}", *cells))
    (first, largest), (second, next_largest), *_ = sorted(factors.items(), key=lambda item: -item[1])
    return (
        f"{markdown_table(('endpoint error, all seeds', *TABULAR.values()), rows)}\nThe largest factors "
        f"between seeds are {largest:.1f} ({first}) and {next_largest:.1f} ({second}).\n"
    )


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


def _common_seeds(runs: Sequence[Result], setting: str, trained: Trained) -> set[int]:
    """Seeds with all procedures and epochs."""
    found = [
        {run.seed for run in _select(runs, setting, name, epochs, trained.rounds)}
        for name, epochs in product(trained.procedures, trained.epochs)
    ]
    return set.intersection(*found)


def _endpoints(runs: Sequence[Result], setting: str, procedure: str) -> list[float]:
    """Endpoint errors of a procedure to its own target, at the paper's protocol."""
    return [metrics.endpoint(run) for run in _select(runs, setting, procedure, 4000)]


def _select(
    runs: Sequence[Result], setting: str, procedure: str, epochs: int, rounds: int = 8
) -> list[Result]:
    wanted = (setting, Procedure.parse(procedure), epochs, rounds)
    return [run for run in runs if (run.setting, run.procedure, run.epochs, run.rounds) == wanted]


def _target(procedure: str) -> str:
    return "centralized Gram" if "corrected" in procedure else "barycenter"


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


def _format_range(values: Collection[float]) -> str:
    """Two digits of the smallest and the largest value; empty without any."""
    return " to ".join(dict.fromkeys(map(_format, _find_ends(values))))


def _find_ends(values: Collection[float]) -> tuple[float, ...]:
    return (min(values), max(values)) if values else ()


if __name__ == "__main__":
    main()
