"""Figures, tables and claims of the network experiments, and of other trained runs."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram._util.text import pluralize
from fedgram.display.plotting import render
from fedgram.display.run_figure import plot_comparison
from fedgram.paper.claims import judge_all, load_claims
from fedgram.paper.networks.comparable import TITLES, ComparableRuns, describe_epochs
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies import registry
from fedgram.paper.networks.studies.registry import STUDIES, Study
from fedgram.paper.networks.tables import TABLES, Cell, SideBySide
from fedgram.paper.report.claims import list_counts, make_rows
from fedgram.paper.report.coverage import list_kinds
from fedgram.runs import Runs
from fedgram.runs.compare import METRICS, Comparison, compare_runs
from fedgram.runs.procedure import Procedure

CAPTIONS = {
    "proximal-tabular": "Proximal training with and without correction, tabular data (Figures 3 and 9)",
    "proximal-images": "Proximal training with and without correction, image data (Figures 3 and 9)",
    "ordinary-tabular": "Ordinary training with and without correction, tabular data (Figure 10)",
    "ordinary-images": "Ordinary training with and without correction, image data (Figure 10)",
    **{
        f"example-{setting}": f"Gram evolution, {title} (the paper's Figure 4 shows MPIIGaze)"
        for setting, title in TITLES.items()
    },
    "comparison": "Ordinary and proximal training (Figure 11)",
    "epochs": "Endpoint error against local epochs",
    "seconds": "Endpoint error against a run's share of its stack's time",
    "dnn-means": "Removing the mean contribution leaves a residual gap (Figure 12)",
    "dnn-epochs": "Local epochs and the endpoint (Figure 13)",
    "dnn-rho": "Weight of the proximal regularizer (Figure 14)",
    "dnn-alignment": "Endpoints by procedure, and the objective that alignment removes (Tables 6 and 7)",
    "dnn-architecture": "Direction errors with other networks and more data (Table 8)",
    "dnn-full-model": "Local training and correction under full-model averaging (Figure 15)",
    "dnn-prediction": "Paired changes of the test error (Figure 16)",
    "beyond-prediction": "Test error by procedure and bias rule, compared with centralized training",
}
"""Caption of a figure, by its own name or else by its experiment's."""


@dataclass(frozen=True)
class NetworkChapter:
    """A network experiment, its results by scale (the largest first), and its claims."""

    study: Study
    results: Mapping[str, Results]
    claims: list[dict[str, Any]]

    @property
    def summary(self) -> str:
        """Number of runs at each scale."""
        scales = (f"{self._count_runs(name)} at {name} scale{self._shared(name)}" for name in self.results)
        return ("only the baseline: " if self.has_only_baseline else "") + ", ".join(scales)

    @property
    def has_only_baseline(self) -> bool:
        """Whether no claim can be measured because a procedure was not run at all."""
        trained = {run.procedure for found in self.results.values() for run in found}
        conditions = [each for cohort in self.study.cohorts for each in cohort.conditions]
        asked = {Procedure.parse(condition.procedure) for condition in conditions}
        unmeasured = {claim["verdict"] for claim in self.claims} == {"not run"}
        return bool(trained) and unmeasured and trained < asked

    def _count_runs(self, scale: str) -> str:
        """Count runs; by procedure if only a baseline was run, to show what is missing."""
        if not self.has_only_baseline:
            return pluralize(len(self.results[scale]))
        sources = {variety: Source("any") for variety in self.study.varieties}
        asked = Counter(key.procedure.name for key in self.study.keys(SCALES[scale], sources))
        found = Counter(run.procedure.name for run in self.results[scale])
        counts = [f"{found[name]:,} of {number:,} {name}" for name, number in asked.items()]
        return f"{' and '.join(counts)} runs"

    def _shared(self, scale: str) -> str:
        """Name the runs that a larger scale has too: a tenth of the epochs may be a sweep's budget."""
        first = next(iter(self.results))
        known = {run.key for run in self.results[first]} if scale != first else set()
        shared = [run for run in self.results[scale] if run.key in known]
        if not shared:
            return ""
        part = "" if len(shared) == len(self.results[scale]) else f"{len(shared):,} of them "
        return f" ({part}the same as at {first} scale with {describe_epochs(shared)})"


def load_results(out: Path) -> Results:
    """Load the results of all scales in a folder of experiments."""
    return Results(run for scale in SCALES for run in Results.load(out / scale / "results"))


def make_chapters(results: Results) -> list[NetworkChapter]:
    """All network experiments, ours first; the smoke scale only where there is no other."""
    ours_first = sorted(STUDIES.values(), key=lambda study: study.where != "ours")
    return [_make_chapter(study, results) for study in ours_first]


def _make_chapter(study: Study, results: Results) -> NetworkChapter:
    found = {name: _select(study, results.select(scale=name)) for name in SCALES}
    found = {name: own for name, own in found.items() if own}
    if len(found) > 1:
        found.pop("smoke", None)
    largest = next(iter(found.values()), None)
    measured = study.measure(ComparableRuns.from_results(largest)) if largest else {}
    judged = judge_all(load_claims(study.name), measured)
    return NetworkChapter(study, found, [each.document() for each in judged])


def _select(study: Study, results: Results) -> Results:
    """Runs of an experiment among results of one scale."""
    runs = ComparableRuns.from_results(results)
    sources = {variety: Source(dataset) for variety, dataset in runs.datasets.items()}
    return Results(runs.by_key[key] for key in study.keys(runs.scale, sources) if key in runs.by_key)


def describe_chapter(chapter: NetworkChapter, results: Results) -> dict[str, Any]:
    """Template values of a chapter; its tables may use runs of other experiments."""
    study = chapter.study
    runs = [run for found in chapter.results.values() for run in found]
    judged_at = next(iter(chapter.results), None)
    by_scale = chapter.results or {"": Results()}
    drawn = _select_drawn(by_scale)
    return {
        "name": study.name,
        "title": study.title,
        "place": "beyond the paper" if study.where == "ours" else f"{study.where} of the paper",
        "summary": chapter.summary or "not run",
        "kinds": [] if chapter.has_only_baseline else list_kinds(runs),
        "hardware": ", ".join(sorted({run.hardware for run in runs})),
        "scales": [
            {
                "title": SCALES[scale].description if scale else "",
                "figures": _describe_figures(study.name, drawn[scale]),
                "tables": _describe_tables(study.name, results.select(scale=scale)),
            }
            for scale in by_scale
        ],
        "claims": make_rows(chapter.claims),
        "claims_title": f"{len(chapter.claims)} claims"
        + (f", judged by the runs at {judged_at} scale" if judged_at else "")
        + f": {list_counts(chapter.claims)}",
    }


def _select_drawn(by_scale: Mapping[str, Results]) -> dict[str, Results]:
    """Runs to draw at each scale, the largest first: a smaller one shows the settings that it adds."""
    drawn: dict[str, Results] = {}
    for scale, found in by_scale.items():
        known = {run.setting for larger in drawn.values() for run in larger}
        drawn[scale] = Results(run for run in found if run.setting not in known)
    return drawn


def _describe_figures(study: str, results: Results) -> list[dict[str, Any]]:
    figures = registry.figures_of(study, results) if results else {}
    images = {name: figure and encode_png(registry.render_styled(figure)) for name, figure in figures.items()}
    return [{"caption": CAPTIONS[name or study], "png": png} for name, png in images.items()]


def encode_png(content: bytes) -> str:
    """Encode an image for a data: URL."""
    return base64.b64encode(content).decode()


def _describe_tables(study: str, results: Results) -> list[dict[str, Any]]:
    """Template values of an experiment's tables; rows without any number are dropped."""
    tables = []
    for table in TABLES.get(study, ()):
        rows = [
            _describe_row(label, cells)
            for label, cells in table.fill(results).items()
            if any(cell.run or cell.paper is not None for cell in cells)
        ]
        if rows:
            about = f"{table.about} {_describe_sides(table, ComparableRuns.from_results(results).scale.name)}"
            columns = [column.title for column in table.columns]
            tables.append(
                {"title": table.title, "where": table.where, "about": about, "columns": columns, "rows": rows}
            )
    return tables


def _describe_sides(table: SideBySide, scale: str) -> str:
    if table.where == "ours":
        return "Settings without runs are not shown."
    if scale == "paper":
        return "The upper number is the paper's, the lower one ours."
    return f"All numbers are ours; the paper's numbers are not comparable at {scale} scale."


def _describe_row(label: str, cells: list[Cell]) -> dict[str, Any]:
    """Template values of a row; coverage goes into its heading where all cells have the same."""
    has_paper, coverage = any(cell.paper is not None for cell in cells), {cell.coverage for cell in cells}
    common = coverage.pop() if len(coverage) == 1 else ""
    return {
        "label": label,
        "coverage": common,
        "cells": [
            {
                "paper": cell.format("paper") if has_paper else "",
                "ours": cell.format("ours"),
                "coverage": "" if common else cell.coverage,
            }
            for cell in cells
        ],
    }


def describe_training(folder: Path) -> dict[str, Any]:
    """Template values of all finished runs of `fedgram train` in a folder, by setting."""
    runs = Runs(folder).require()
    return {
        "hardware": ", ".join(sorted({run.account.hardware for run in runs})),
        "columns": ["procedure", "target", *METRICS],
        "settings": [_describe_comparison(each) for each in compare_runs(runs)],
    }


def _describe_comparison(setting: Comparison) -> dict[str, Any]:
    rows = [[setting.label(group), group.target, *map(group.spread, METRICS)] for group in setting.groups]
    return {
        "title": setting.title,
        "scale": setting.scale,
        "png": encode_png(render(plot_comparison([setting]))),
        "rows": [[str(cell).split(" ± ") for cell in row] for row in rows],  # [mean] or [mean, deviation]
        "warnings": setting.warnings,
    }
