"""Write the generated parts of README.md and REPRODUCTION.md: tables of numbers and a figure.

    python benchmarks/readme_numbers.py

Numbers come from `benchmarks/site_results.json` and `results/`; the figure from `examples/three_sites.csv`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import site_problems
from benchmark_pages import markdown_table, replace_between
from fedgram import Penalty, explain, predict, read_moments
from fedgram.display.prediction_figure import draw_prediction
from fedgram.paper.claims import FACTORS
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.networks.results import Results as NetworkResults
from fedgram.paper.networks.results import RunKey
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies.registry import Study
from fedgram.paper.report.networks import NetworkChapter, load_results, make_chapters
from site_results import SIMPLE, Results, summarize

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "three_sites.png"
EXAMPLE = "examples/three_sites.csv"
TITLES = {"tuned": "problems used to set its rules", "held-out": "other problems"}


def main() -> None:
    replace_between(ROOT / "README.md", "numbers", tables())
    replace_between(ROOT / "REPRODUCTION.md", "agreement", agreement_tables())
    draw(FIGURE)


def tables() -> str:
    """Tables of the section "What to expect"."""
    return f"{_sites()}\n{_paper()}"


def _sites() -> str:
    results = Results(ROOT / "benchmarks" / "site_results.json", order=SIMPLE)
    groups = {name: results.problems(names) for name, names in site_problems.GROUPS.items()}
    return summarize(results, {f"{len(names)} {TITLES[name]}": names for name, names in groups.items()})


def _paper() -> str:
    """Count the paper's runs that are done, and its numbers that ours come close to."""
    results = load_results(ROOT / "results")
    agreement = measure_agreement(results)[0]
    return (
        "| the paper's network experiments | |\n| --- | --- |\n"
        f"| runs that are done | {_count_runs(_load_papers_chapters(results))} |\n"
        f"| numbers of the paper that ours match within a factor of 2 | {agreement.count_within(2)} of "
        f"{len(agreement.ratios)} |\n"
    )


def agreement_tables() -> str:
    """Count runs and claims about networks, and the paper's numbers within several factors of ours."""
    results = load_results(ROOT / "results")
    chapters = _load_papers_chapters(results)
    claims = [claim for chapter in chapters for claim in chapter.claims]
    verdicts = Counter((claim["verdict"], claim.get("agrees")) for claim in claims)
    complete = sum(count for (verdict, _), count in verdicts.items() if verdict == "match")
    counts = [
        ("runs at the paper's scale", _count_runs(chapters)),
        ("claims that match, with all runs", str(complete)),
        ("claims that agree so far", str(verdicts["partial", True])),
        ("claims that disagree so far", str(verdicts["partial", False])),
        ("claims that are missed", str(sum(n for (name, _), n in verdicts.items() if name == "miss"))),
    ]
    factors = [f"within {factor:.3g}" for factor in FACTORS]
    rows = [
        (row.label, str(len(row.ratios)), *map(str, row.counts))
        for row in measure_agreement(results)
        if row.ratios
    ]
    headings = ("numbers of the paper that depend on training", "compared", *factors)
    return f"{markdown_table(('networks', 'number'), counts)}\n{markdown_table(headings, rows)}"


def _load_papers_chapters(results: NetworkResults) -> list[NetworkChapter]:
    return [chapter for chapter in make_chapters(results) if chapter.study.where != "ours"]


def _count_runs(chapters: Sequence[NetworkChapter]) -> str:
    done = {run.key for chapter in chapters for run in chapter.results.get("paper", ())}
    wanted = {key for chapter in chapters for key in _list_wanted(chapter.study)}
    return f"{len(done)} of {len(wanted)}"


def _list_wanted(study: Study) -> list[RunKey]:
    sources = {variety: Source("any") for variety in study.varieties}
    return study.keys(SCALES["paper"], sources)


def draw(path: Path) -> None:
    """Draw what `fedgram explain --figure` draws."""
    moments = read_moments(ROOT / EXAMPLE, client="site", targets=["east", "north"])
    prediction = predict(moments, Penalty(features=0.1, head=0.1))
    draw_prediction(prediction, explain(prediction), path, f"Predicted from {EXAMPLE} (GENERATED)")


if __name__ == "__main__":
    main()
