"""Write the generated parts of README.md: tables of numbers and a figure.

    python benchmarks/readme_numbers.py

Numbers come from `benchmarks/site_results.json`, `benchmarks/advice_results.json` and `results/`; the figure
from `examples/three_sites.csv`.
"""

from __future__ import annotations

from pathlib import Path

import advice_results
import site_problems
from benchmark_pages import markdown_table, read_results, replace_between
from fedgram import Penalty, explain, predict, read_moments
from fedgram.display.prediction_figure import draw_prediction
from fedgram.paper.networks.agreement import measure_agreement
from fedgram.paper.report.networks import load_results
from reproduction_page import count_runs, load_chapters
from site_results import SIMPLE, Results, summarize

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "figures" / "three_sites.png"
EXAMPLE = "examples/three_sites.csv"
TITLES = {
    "problems used to set its rules": ("tuned",),
    "seen before its last change": ("held-out", "checked", "untouched", "added", "latest"),
    "new since then": ("fresh",),
}


def main() -> None:
    replace_between(ROOT / "README.md", "numbers", tables())
    draw(FIGURE)


def tables() -> str:
    """Tables of the section "What to expect"."""
    return f"{_sites()}\n{_advice()}\n{_paper()}"


def _sites() -> str:
    results = Results(ROOT / "benchmarks" / "site_results.json", order=SIMPLE)
    problems = {
        title: results.problems([name for group in groups for name in site_problems.GROUPS[group]])
        for title, groups in TITLES.items()
    }
    return summarize(results, {f"{len(names)} {title}": names for title, names in problems.items()})


def _advice() -> str:
    """Count how often joining was recommended, and rightly so."""
    rows = [("`advise`, tested on rows that it has not seen", "joining recommended", "error then fell")]
    seed, results = list(read_results(advice_results.STORED).items())[-1]  # the one that set no rule
    joined = list(filter(advice_results.recommends_joining, results.values()))
    fell = sum(each["unseen_change"][0] < 0 for each in joined)
    label = f"seed {seed}: {advice_results.SEEDS[seed]}"
    rows.append((label, f"on {len(joined)} of {len(results)} problems", f"on {fell}"))
    return markdown_table(rows[0], rows[1:])


def _paper() -> str:
    """Count the paper's runs that are finished, and its numbers that ours come close to."""
    results = load_results(ROOT / "results")
    agreement = measure_agreement(results)[0]
    return (
        "| the paper's network experiments | |\n| --- | --- |\n"
        f"| finished runs | {count_runs(load_chapters(results))} |\n"
        f"| the paper's numbers that ours match within a factor of 2 | {agreement.count_within(2)} of "
        f"{len(agreement.ratios)} |\n"
    )


def draw(path: Path) -> None:
    """Draw what `fedgram explain --figure` draws."""
    moments = read_moments(ROOT / EXAMPLE, client="site", targets=["east", "north"])
    prediction = predict(moments, Penalty(features=0.1, head=0.1))
    draw_prediction(prediction, explain(prediction), path, f"Predicted from {EXAMPLE} (GENERATED)")


if __name__ == "__main__":
    main()
