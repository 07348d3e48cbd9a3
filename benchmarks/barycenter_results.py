"""Results of `barycenter.py`: stored as JSON, and shown as tables and a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmark_pages import replace_between

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
    return [Row(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Store results."""
    document = json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
    path.write_text(document + "\n", encoding="utf-8")


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


def markdown(rows: Sequence[Row]) -> str:
    """Table for a page."""
    lines = [HEADINGS, ("---",) * len(HEADINGS), *format_rows(rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def replace_tables(rows: Sequence[Row], page: Path) -> None:
    """Replace both tables of a page."""
    replace_between(page, "barycenters", markdown([row for row in rows if row.is_benign]))
    replace_between(page, "hard barycenters", markdown([row for row in rows if not row.is_benign]))


def draw_times(rows: Sequence[Row], path: Path) -> None:
    """Draw bars for the well-conditioned problems."""
    from matplotlib.figure import Figure

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
        axes.bar(places, [row.milliseconds for row in mine], width=0.8 / len(names), label=name)
    axes.set(yscale="log", ylabel="CPU time of a call [ms]", xlabel="(C, M)", xticks=range(len(labels)))
    axes.set_xticklabels(labels)
    axes.legend(ncols=2, frameon=False)
    axes.set_title("Bures–Wasserstein barycenters, GENERATED Grams, one core", fontsize=9)
    figure.savefig(path, dpi=150)
