"""Figures, tables and claims of the network experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram._util.text import pluralize
from fedgram.paper.claims import judge_all, load_claims
from fedgram.paper.networks.comparable import ComparableRuns, describe_epochs
from fedgram.paper.networks.results import Result, Results
from fedgram.paper.networks.scales import SCALES, Scale
from fedgram.paper.networks.settings import Source
from fedgram.paper.networks.studies import registry
from fedgram.paper.networks.studies.registry import STUDIES, Study
from fedgram.paper.networks.tables import TABLES, Cell, SideBySide
from fedgram.paper.report.claims import list_counts
from fedgram.paper.report.coverage import list_kinds
from fedgram.paper.report.svg import FigureEmbedder
from fedgram.runs.procedure import Procedure

CAPTIONS = {
    "proximal-tabular": "Proximal training with and without correction, tabular data (Figures 3 and 9)",
    "proximal-images": "Proximal training with and without correction, image data (Figures 3 and 9)",
    "ordinary-tabular": "Ordinary training with and without correction, tabular data (Figure 10)",
    "ordinary-images": "Ordinary training with and without correction, image data (Figure 10)",
    "evolution": "Shared Gram over rounds (the paper's Figure 4 shows MPIIGaze)",
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
    """All network experiments in the order of the paper, then ours; the smoke scale only if it is alone."""
    return [_make_chapter(study, results) for study in STUDIES.values()]


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


def _describe_hardware(runs: Iterable[Result]) -> str:
    """Name devices with their precisions: 'NVIDIA H200 (fp16, tf32)'."""
    precisions: dict[str, set[str]] = {}
    for run in runs:
        precisions.setdefault(run.hardware, set()).add(run.precision)
    return ", ".join(f"{name} ({', '.join(sorted(each))})" for name, each in sorted(precisions.items()))


def describe_chapter(chapter: NetworkChapter, results: Results, embed: FigureEmbedder) -> dict[str, Any]:
    """Template values of a chapter with runs; its tables may use runs of other experiments."""
    study = chapter.study
    runs = [run for found in chapter.results.values() for run in found]
    drawn = _select_drawn(chapter.results)
    scales = [
        {
            "title": SCALES[scale].description,
            "figures": _describe_figures(study.name, drawn[scale], embed),
            "tables": _describe_tables(study.name, results.select(scale=scale)),
        }
        for scale in chapter.results
    ]
    return {
        "name": study.name,
        "title": study.title,
        "where": "beyond the paper" if study.where == "ours" else study.where,
        "summary": chapter.summary,
        "kinds": [] if chapter.has_only_baseline else list_kinds(runs),
        "hardware": _describe_hardware(runs),
        "scales": [each for each in scales if each["figures"] or each["tables"]],
        "claims": list_counts(chapter.claims),
        "judged_at": next(iter(chapter.results)),
    }


def _select_drawn(by_scale: Mapping[str, Results]) -> dict[str, Results]:
    """Runs to draw at each scale, the largest first: a smaller one shows the settings that it adds."""
    drawn: dict[str, Results] = {}
    for scale, found in by_scale.items():
        known = {run.setting for larger in drawn.values() for run in larger}
        drawn[scale] = Results(run for run in found if run.setting not in known)
    return drawn


def _describe_figures(study: str, results: Results, embed: FigureEmbedder) -> list[dict[str, Any]]:
    figures = registry.figures_of(study, results) if results else {}
    return [
        {"caption": caption, "svg": embed(registry.render_styled(figure, "svg"), caption)}
        for name, figure in figures.items()
        if figure is not None
        for caption in [CAPTIONS[name or study]]
    ]


def _describe_tables(study: str, results: Results) -> list[dict[str, Any]]:
    """Template values of an experiment's tables; rows without runs are dropped."""
    tables = []
    for table in TABLES.get(study, ()):
        rows = [
            _describe_row(label, cells)
            for label, cells in table.fill(results).items()
            if any(cell.run for cell in cells)
        ]
        if rows:
            about = f"{table.about} {_describe_sides(table, ComparableRuns.from_results(results).scale)}"
            columns = [column.title for column in table.columns]
            tables.append(
                {"title": table.title, "where": table.where, "about": about, "columns": columns, "rows": rows}
            )
    return tables


def _describe_sides(table: SideBySide, scale: Scale) -> str:
    if table.where == "ours":
        return "Settings without runs are not shown."
    if scale.is_full:
        return "The upper number is the paper's, the lower one ours."
    return f"All numbers are ours; the paper's numbers are not comparable at {scale.name} scale."


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
                "coverage": cell.coverage if cell.run and not common else "",
            }
            for cell in cells
        ],
    }
