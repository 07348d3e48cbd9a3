"""How much of the paper's network experiments was run: its coverage tables, coloured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import BUDGETS, WEIGHTS, Cohort, Condition, proximal
from fedgram.paper.networks.comparable import KINDS, TITLES, ComparableRuns
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import ALL, SETTINGS

STATES = {
    "full": "the paper's protocol",
    "part": "the paper's protocol, some of the runs",
    "reduced": "reduced: fewer local epochs",
    "none": "not run",
    "outside": "not part of the comparison",
}


@dataclass(frozen=True)
class Column:
    """One comparison: its heading, and its runs as a cohort and some of that cohort's conditions."""

    heading: str
    cohort: Cohort
    conditions: tuple[str | Condition, ...]


def _column(heading: str, cohort: Cohort, *conditions: str | Condition) -> Column:
    return Column(heading, cohort, conditions)


MAIN = (
    _column("ordinary", cohorts.MAIN, "ordinary"),
    _column("proximal", cohorts.MAIN, "proximal"),
    _column("corrected", cohorts.MAIN, "corrected"),
    _column("corrected proximal", cohorts.MAIN, "proximal+corrected"),
    _column("aligned", cohorts.ALIGNMENT, "aligned"),
    _column("corrected aligned", cohorts.ALIGNMENT_CORRECTED, "aligned+corrected"),
    # Two runs of ours, averaged with and without alignment, are one of the paper's.
    _column("independent start", cohorts.MISMATCHED, cohorts.MISMATCHED.conditions[-1]),
    _column("solved (ours)", cohorts.SOLVED, *(Condition("solved", budget) for budget in BUDGETS)),
    _column("predict (ours)", cohorts.BETTER_PREDICTION, *cohorts.BETTER_PREDICTION.conditions),
)
SUPPLEMENTARY = (
    _column("means", cohorts.MEANS, "centered"),
    _column("E", cohorts.EPOCHS, *(Condition("ordinary", budget) for budget in BUDGETS)),
    _column("ρ", cohorts.RHO, *map(proximal, WEIGHTS)),
    _column("CNN", cohorts.ARCHITECTURE, cohorts.CNN),
    _column("CNN + C", cohorts.ARCHITECTURE, cohorts.CNN_CORRECTED),
    _column("RN34", cohorts.ARCHITECTURE, cohorts.RESNET34),
    _column("data", cohorts.LARGER_DATA, cohorts.LARGER),
    _column("full E = 4000", cohorts.FULL_MODEL, cohorts.FULL),
    _column("full E = 400", cohorts.FULL_MODEL, cohorts.FULL_SHORT),
    _column("full + C", cohorts.FULL_MODEL, cohorts.FULL_CORRECTED),
    _column("predict", cohorts.PREDICTION, *cohorts.PREDICTION.conditions),
)


def coverage_section(results: Results) -> str:
    """The coverage tables of the main and the supplementary experiments (Tables 2 and 3) as HTML."""
    swatches = "".join(f'<li><i class="{state}"></i>{words}</li>' for state, words in STATES.items())
    return f"""<section id="coverage"><h2>What was run</h2>
<p class="where">Settings by comparisons, Tables 2 and 3 of the paper; a number counts runs.</p>
<ul class="key">{swatches}</ul>
<h3>Main experiments, alignment, and ours</h3>
{_table(results, MAIN)}
<h3>Supplementary experiments</h3>
{_table(results, SUPPLEMENTARY)}
</section>"""


def badges(results: Results) -> str:
    """The kinds of data of some results, each as a badge."""
    kinds = [kind for kind in KINDS if any(run.kind == kind for run in results)]
    return "".join(f'<span class="badge {kind.lower()}">{kind}</span>' for kind in kinds)


def state_of(results: Results, setting: str, column: Column) -> tuple[str, str]:
    """Which of STATES a comparison is in for a setting, and the text of its cell."""
    if setting not in column.cohort.settings:
        return "outside", "–"
    needed = len(column.conditions) * len(column.cohort.seeds)
    run, reduced = (_count(results.select(scale=scale), setting, column) for scale in ("paper", "reduced"))
    if run == needed:
        return "full", f"{run}"
    if run:
        return "part", f"{run} of {needed}"
    return ("reduced", f"{reduced} of {needed}") if reduced else ("none", "")


def _count(results: Results, setting: str, column: Column) -> int:
    shown, seeds = ComparableRuns.from_results(results), column.cohort.seeds
    return sum(len(shown.runs(setting, condition, seeds)) for condition in column.conditions)


def _table(results: Results, columns: Sequence[Column]) -> str:
    headings = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    rows = "\n".join(_row(results, setting, columns) for setting in ALL)
    return f"""<div class="scroll"><table class="coverage"><thead><tr><th>setting</th>{headings}</tr></thead>
<tbody>{rows}</tbody></table></div>"""


def _row(results: Results, setting: str, columns: Sequence[Column]) -> str:
    # What is part of fedgram stands for every dataset at the smoke scale: it says nothing about a setting.
    own = Results(run for run in results if run.setting == setting and run.scale != "smoke")
    cells = ""
    for column in columns:
        state, text = state_of(own, setting, column)
        cells += f'<td class="{state}" title="{STATES[state]}">{text}</td>'
    network = f"<small>{SETTINGS[setting].backbone}</small>"
    return f"<tr><th>{TITLES[setting]} {badges(own)}{network}</th>{cells}</tr>"
