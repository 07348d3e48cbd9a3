"""Results of `barycenter.py`: stored as JSON, and shown as tables and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmark_pages import markdown_table, read_results

STORED = Path(__file__).with_name("barycenter_results.json")
HEADINGS = ("(C, M)", "", "ms", "times ours", "error")


@dataclass(frozen=True)
class Row:
    """One line of the table; scaled: the time of some problems, scaled up to all."""

    problem: str
    who: str
    milliseconds: float
    error: float
    scaled: bool

    @property
    def is_benign(self) -> bool:
        """Whether the Grams are well-conditioned, so that everyone is accurate and time is what differs."""
        return "condition" not in self.problem and "singular" not in self.problem


def read_rows(path: Path) -> list[Row]:
    """Read stored results."""
    return [Row(**each) for each in read_results(path)]


def format_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of the table, in the order of HEADINGS."""
    own = {row.problem: row.milliseconds for row in rows if row.who == "fedgram"}
    return [
        (
            row.problem,
            row.who,
            f"{'~' if row.scaled else ''}{row.milliseconds:.3g}",
            "" if row.who == "fedgram" else f"{row.milliseconds / own[row.problem]:.2g}",
            f"{row.error:.1e}",
        )
        for row in rows
    ]


def show_table(rows: Sequence[Row]) -> Table:
    """Table for a terminal."""
    shown = Table(*HEADINGS, title="Barycenters on one core")
    for column in shown.columns[2:]:
        column.justify = "right"
    for problem, who, *cells in format_rows(rows):
        is_first = who == "fedgram"
        if is_first and shown.row_count:
            shown.add_section()
        shown.add_row(problem if is_first else "", who, *cells)
    return shown


def tables(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Tables of the page, by name: well-conditioned problems, and the others."""
    rows = [Row(**each) for each in results]
    groups = {
        "barycenters": [row for row in rows if row.is_benign],
        "hard barycenters": [row for row in rows if not row.is_benign],
    }
    return {
        name: f"Milliseconds of a call (times ours):\n\n{_pivot(group, _format_time(group))}\n"
        f"Relative error:\n\n{_pivot(group, lambda row: f'{row.error:.1e}')}"
        for name, group in groups.items()
    }


def _pivot(rows: Sequence[Row], show: Callable[[Row], str]) -> str:
    """One line per problem, one column per library."""
    names = list(dict.fromkeys(row.who for row in rows))
    problems = list(dict.fromkeys(row.problem for row in rows))
    cells = {(row.problem, row.who): show(row) for row in rows}
    lines = [(problem, *(cells.get((problem, name), "") for name in names)) for problem in problems]
    return markdown_table(("(C, M)", *names), lines)


def _format_time(rows: Sequence[Row]) -> Callable[[Row], str]:
    """Format a time, and its ratio to ours on the same problem."""
    own = {row.problem: row.milliseconds for row in rows if row.who == "fedgram"}

    def show(row: Row) -> str:
        time = f"{'~' if row.scaled else ''}{_round(row.milliseconds)}"
        return time if row.who == "fedgram" else f"{time} ({_round(row.milliseconds / own[row.problem], 2)})"

    return show


def _round(value: float, digits: int = 3) -> str:
    """Significant digits, without an exponent."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def draw_times(rows: Sequence[Row], path: Path) -> None:
    """Draw bars for the well-conditioned problems."""
    from matplotlib.figure import Figure

    from fedgram.display.plotting import PALETTE

    rows = [row for row in rows if row.is_benign]
    names = list(dict.fromkeys(row.who for row in rows))
    labels = list(dict.fromkeys(row.problem for row in rows))
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(names):
        mine = [row for row in rows if row.who == name]
        places = [
            labels.index(row.problem) + (index - (len(names) - 1) / 2) * 0.8 / len(names) for row in mine
        ]
        axes.bar(
            places,
            [row.milliseconds for row in mine],
            width=0.8 / len(names),
            label=name,
            color=PALETTE[index],
        )
    axes.set(
        yscale="log",
        ylabel="CPU time of a call [ms]",
        xlabel="(C targets, M clients)",
        xticks=range(len(labels)),
    )
    axes.set_xticklabels(labels)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=2, frameon=False)
    axes.set_title("Bures–Wasserstein barycenters, GENERATED Grams, one core", fontsize=9)
    figure.savefig(path, dpi=150)
