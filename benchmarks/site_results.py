"""Results of `sites.py`: stored on disk, compared, and shown as tables and a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedgram._util.files import read_json, write_json

# Rows that the targets compare. `site_fedgram` returns those of fedgram under these names.
ALONE, FEDAVG, OWN_LAST, AUTO = "alone", "FedAvg", "FedAvg, own last model", "auto"
ALONE_TRAINED = "alone, head as trained"
SHARED_HEADS = ("shared head", "shared head, proximal")
SIMPLE = (ALONE, ALONE_TRAINED, FEDAVG, OWN_LAST, *SHARED_HEADS)
"""Simpler ways that `auto` should not lose to."""
POOLED_WITH_SITE = "boosting pooled, site as category"
TUNED_WITH_SITE = "boosting pooled, site as category, tuned"
FEDAVG_SMALL = "FedAvg, width 64"  # the network that Flower trains
SHORT_LABELS = (
    "FedAvg", "the same network alone", "the best simpler procedure, worst problem",
    "boosting on pooled rows, site as a column", "the same, tuned",
)  # fmt: skip
"""Labels of the targets of `check_targets`, in its order."""
FLOWER_FEDAVG, FLOWER_FEDPROX = "Flower FedAvg", "Flower FedProx"


@dataclass(frozen=True)
class Result:
    """One procedure on one problem with one seed.

    test_mse: mean over all test rows and standardized targets. bytes_sent: by a site in total, the mean over
    sites. seconds: wall time of everything that leads to the predictions. network: the backbone, if there is
    one.
    """

    test_mse: float
    bytes_sent: float
    seconds: float
    network: str | None = None


class Results:
    """Results by problem, seed and row, kept in a JSON file that is written after every training.

    `order` is the order in which tables show rows.
    """

    def __init__(self, path: Path, order: Sequence[str]) -> None:
        self.path, self.order = path, list(order)
        self.entries: list[dict] = read_json(path)["results"] if path.exists() else []

    def has(self, problem: str, seed: int, rows: Iterable[str]) -> bool:
        """Whether all rows were computed."""
        return {(problem, seed, row) for row in rows} <= set(map(_key, self.entries))

    def put(self, problem: str, seed: int, rows: Mapping[str, Result]) -> None:
        """Add rows, or replace them, and write the file."""
        kept = [each for each in self.entries if _key(each) not in {(problem, seed, row) for row in rows}]
        new = [{"problem": problem, "seed": seed, "row": row, **asdict(each)} for row, each in rows.items()]
        self.entries = [*kept, *new]
        write_json(self.path, {"results": self.entries})

    def rows(self, problems: Sequence[str]) -> list[str]:
        """Names of the rows of some problems, in order."""
        found = {each["row"] for each in self.entries if each["problem"] in problems}
        return [row for row in self.order if row in found]

    def problems(self, names: Sequence[str]) -> list[str]:
        """Those of the problems that have results."""
        found = {each["problem"] for each in self.entries}
        return [name for name in names if name in found]

    def seeds(self, problem: str, row: str) -> dict[int, Result]:
        """Results of one row by seed."""
        return {
            each["seed"]: Result(each["test_mse"], each["bytes_sent"], each["seconds"], each.get("network"))
            for each in self.entries
            if (each["problem"], each["row"]) == (problem, row)
        }

    def mean(self, problem: str, row: str, field: str = "test_mse") -> float:
        """Mean over the seeds that `auto` has; NaN if the row was not run with them."""
        seeds, common = self.seeds(problem, row), self.seeds(problem, AUTO).keys()
        values = [getattr(result, field) for seed, result in seeds.items() if seed in common]
        return float(np.mean(values)) if values else float("nan")


def _key(entry: Mapping) -> tuple[str, int, str]:
    return entry["problem"], entry["seed"], entry["row"]


@dataclass(frozen=True)
class Target:
    """A ratio of test errors and the limit it is held to; NaN if rows are missing."""

    sentence: str
    ratio: float
    limit: float

    def __str__(self) -> str:
        if np.isnan(self.ratio):
            return f"{self.sentence}: not measured (target: at most {self.limit:.2f})"
        verdict = "met" if self.ratio <= self.limit else "missed"
        return f"{self.sentence}: {self.ratio:.3f} (target: at most {self.limit:.2f}, {verdict})"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean; NaN if there is no ratio or one is NaN."""
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")


def relative(results: Results, problems: Sequence[str], row: str, reference: str) -> list[float]:
    """Mean test error of a row divided by that of another, for each problem."""
    return [results.mean(problem, row) / results.mean(problem, reference) for problem in problems]


def check_targets(results: Results, problems: Sequence[str]) -> list[Target]:
    """Compare `auto` with FedAvg, alone, the best of the simple rows, and pooled boosting."""

    def mean_against(reference: str) -> float:
        return geometric_mean(relative(results, problems, AUTO, reference))

    measured = results.rows(problems)
    simple = [row for row in SIMPLE if row in measured]
    against_best = [
        results.mean(problem, AUTO) / np.nanmin([results.mean(problem, row) for row in simple])
        for problem in problems
    ]
    worst = int(np.argmax(against_best))  # the first NaN, if there is one
    return [
        Target(f"{AUTO} / {FEDAVG}, geometric mean", mean_against(FEDAVG), 0.85),
        Target(f"{AUTO} / {ALONE}, geometric mean", mean_against(ALONE), 0.86),
        Target(
            f"{AUTO} / best of ({'; '.join(simple)}), worst problem ({problems[worst]})",
            against_best[worst],
            1.03,
        ),
        Target(f"{AUTO} / {POOLED_WITH_SITE}, geometric mean", mean_against(POOLED_WITH_SITE), 1.0),
        Target(f"{AUTO} / {TUNED_WITH_SITE}, geometric mean", mean_against(TUNED_WITH_SITE), 1.0),
    ]


def compare_with_flower(results: Results, problems: Sequence[str]) -> Iterator[Target]:
    """Compare our FedAvg with Flower's, on the problems and seeds where both were run."""
    for problem in problems:
        ours, theirs = (results.seeds(problem, row) for row in (FEDAVG_SMALL, FLOWER_FEDAVG))
        if common := ours.keys() & theirs.keys():
            means = [np.mean([each[seed].test_mse for seed in common]) for each in (ours, theirs)]
            difference = float(abs(means[0] / means[1] - 1))
            yield Target(
                f"{FEDAVG_SMALL} and {FLOWER_FEDAVG}, relative difference, {problem}", difference, 0.02
            )


def markdown(results: Results, problems: Sequence[str]) -> str:
    """Tables of test error and bytes sent, then the targets.

    Seconds are stored but not shown: most were measured on machines that other work shared.
    """
    errors = _table(results, problems, "test_mse", _format_error)
    if results.seeds(problems[0], ALONE):
        errors = _add_relative(errors, results, problems)
    errors += _describe_auto(results, problems)
    kibibytes = _table(results, problems, "bytes_sent", lambda sent: f"{sent / 1024:,.1f}")
    lines = ["Test MSE of standardized targets, mean over the seeds of `auto`:", "", *errors, ""]
    lines += ["KiB that a site sends, mean over sites:", "", *kibibytes, ""]
    checks = [*check_targets(results, problems), *compare_with_flower(results, problems)]
    return "\n".join([*lines, *(f"- {check}" for check in checks)]) + "\n"


def summarize(results: Results, groups: Mapping[str, Sequence[str]]) -> str:
    """Table of the test error of `auto` relative to others, with one column per group of problems."""
    ratios = [[target.ratio for target in check_targets(results, names)] for names in groups.values()]
    lines = [["test error of the recommended model", *groups], ["---"] * (1 + len(groups))]
    for label, values in zip(SHORT_LABELS, zip(*ratios, strict=True), strict=True):
        lines.append([f"relative to {label}", *(_format_ratio(value) for value in values)])
    lines.append(["seeds", *(_count_seeds(results, names) for names in groups.values())])
    return "\n".join(map(_line, lines)) + "\n"


def _format_ratio(ratio: float) -> str:
    return "not measured" if np.isnan(ratio) else f"{ratio:.2f}"


def _count_seeds(results: Results, problems: Sequence[str]) -> str:
    counts = [len(results.seeds(problem, AUTO)) for problem in problems]
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _table(results: Results, problems: Sequence[str], field: str, form: Callable[[float], str]) -> list[str]:
    """Lines of a Markdown table: rows by problems, empty where a row was not run."""
    lines = [_line(["", *problems]), _line(["---"] * (1 + len(problems)))]
    for row in results.rows(problems):
        values = [results.mean(problem, row, field) for problem in problems]
        lines.append(_line([row, *("" if np.isnan(value) else form(value) for value in values)]))
    return lines


def _format_error(error: float) -> str:
    """Four decimals, five below 0.001."""
    return f"{error:.4f}" if error >= 0.001 else f"{error:.5f}"


def _describe_auto(results: Results, problems: Sequence[str]) -> list[str]:
    """Lines with the networks that `auto` chose, and its number of seeds, for each problem."""
    found = [list(results.seeds(problem, AUTO).values()) for problem in problems]
    networks = [", ".join(sorted({str(each.network) for each in runs})) for runs in found]
    return [_line(["network", *networks, ""]), _line(["seeds", *(str(len(runs)) for runs in found), ""])]


def _add_relative(lines: list[str], results: Results, problems: Sequence[str]) -> list[str]:
    """Add the geometric mean relative to working alone as a last column."""
    ratios = [geometric_mean(relative(results, problems, row, ALONE)) for row in results.rows(problems)]
    column = [
        f"relative to {ALONE}",
        "---",
        *("" if np.isnan(each) else f"{each:.3f}" for each in ratios),
    ]
    return [f"{line} {each} |" for line, each in zip(lines, column, strict=True)]


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def draw_figure(results: Results, problems: Sequence[str], path: Path, kind: str) -> None:
    """Draw each row's test error relative to working alone: a dot for each problem, a line for the mean.

    The best mean is on top. Rows without all problems have no mean and are at the bottom.
    """
    from matplotlib.figure import Figure

    from fedgram.display.plotting import GREEN, GREY, INK

    rows = [row for row in results.rows(problems) if row != ALONE]
    means = {row: geometric_mean(relative(results, problems, row, ALONE)) for row in rows}
    rows.sort(key=lambda row: np.nan_to_num(means[row], nan=np.inf))
    figure = Figure(figsize=(7, 0.9 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    for height, row in zip(range(len(rows), 0, -1), rows, strict=True):
        ratios = [results.mean(problem, row) / results.mean(problem, ALONE) for problem in problems]
        color = GREEN if row == AUTO else INK
        axes.plot(ratios, [height] * len(ratios), "o", color=color, alpha=0.35, markeredgewidth=0)
        axes.plot(means[row], height, "|", color=color, markersize=15, markeredgewidth=2.5)
    axes.set(xscale="log", xlabel=f"test MSE relative to working alone\n({kind} data)")
    axes.set_yticks(range(len(rows), 0, -1), rows)
    axes.get_yticklabels()[rows.index(AUTO)].set(color=GREEN, fontweight="bold")
    low, high = axes.get_xlim()
    is_wide = high / low > 100
    ticks = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if is_wide else (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 30)
    axes.set_xticks(shown := [tick for tick in ticks if low <= tick <= high], [f"{tick:g}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
