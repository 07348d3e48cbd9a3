"""Reproductions set for a terminal: progress, the table of claims, the list of experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedgram.display.console import ruled, screen
from fedgram.paper.judging import Judged, Verdict
from fedgram.paper.registry import GROUPS, MODULES, experiment
from fedgram.paper.runner import SCALES, Outcome, folder_of

STYLES: dict[Verdict, str] = {
    "match": "green",
    "miss": "bold red",
    "partial": "yellow",
    "not comparable": "dim",
    "not run": "dim",
}
COLUMNS = ("name", "what", "where", "cost", "finished")


@dataclass(frozen=True)
class Shown:
    """Progress of a run, on standard error so that results can be piped."""

    bar: Progress
    task: TaskID

    def started(self, finished: int, total: int) -> None:
        """Show how many parts there are, and how many are finished already."""
        self.bar.update(self.task, completed=finished, total=total, description="running")
        if finished:
            self.bar.console.print(f"{finished} of {total} parts are finished already.")

    def advanced(self, name: str) -> None:
        """Count one more part."""
        self.bar.update(self.task, advance=1, description=name)
        if not self.bar.console.is_terminal:
            self.bar.console.print(f"finished {name}")

    def warned(self, sentence: str) -> None:
        """Say something that the reader should know."""
        self.bar.console.print(sentence)


@contextmanager
def progress() -> Iterator[Shown]:
    """A progress bar over parts."""
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Shown(bar, bar.add_task("looking"))


def print_outcome(outcome: Outcome) -> None:
    """The claims of one experiment, beside ours, with a verdict."""
    console = screen()
    console.print(f"\n{outcome.experiment.name}: {outcome.experiment.title} ({outcome.experiment.where})")
    console.print(f"GENERATED data, {outcome.scale} scale")
    print_judged(console, outcome.judged)
    console.print(f"Files: {outcome.files[-1].parent}", soft_wrap=True)


def print_judged(console: Console, claims: Sequence[Judged]) -> None:
    """Claims beside ours, and how many there are of each verdict."""
    table = ruled()
    for heading, justify in (("claim", "left"), ("paper", "right"), ("ours", "right"), ("verdict", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for judged in claims:
        verdict = judged.verdict + (f": {judged.reason}" if judged.reason else "")
        table.add_row(
            judged.claim.says, judged.claim.paper, judged.ours, verdict, style=STYLES[judged.verdict]
        )
    console.print(table)
    counts = Counter(judged.verdict for judged in claims)
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES if counts[verdict]) + ".")


def listed(out: Path, networks: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """All experiments in words, by the headings of their columns; network experiments are given as rows."""
    exact = [_exact_row(name, out) for name in MODULES]
    return [dict(zip(COLUMNS, row, strict=True)) for row in (*exact, *networks)]


def _exact_row(name: str, out: Path) -> tuple[str, ...]:
    found = experiment(name)
    done = [scale for scale in SCALES if (folder_of(found, out, scale) / "manifest.json").exists()]
    return name, found.title, found.where, f"{found.cost} on 2 cores", ", ".join(done) or "no"


def print_list(experiments: Iterable[dict[str, str]]) -> None:
    """All experiments, what each costs, and which are finished."""
    console = screen()
    table = ruled()
    for heading in COLUMNS:
        table.add_column(heading, no_wrap=heading == "name")
    for row in experiments:
        table.add_row(*row.values())
    console.print(table)
    groups = "; ".join(f"'{name}' runs {len(members)} experiments" for name, members in GROUPS.items())
    console.print(f"{groups}.", soft_wrap=True)
