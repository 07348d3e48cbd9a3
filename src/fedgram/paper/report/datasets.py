"""The paper's table of datasets (Table 1) with the sizes of our data."""

from __future__ import annotations

from typing import Any

from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.settings import SETTINGS, Setting
from fedgram.paper.report.coverage import list_kinds


def describe_datasets(results: Results) -> list[dict[str, Any]]:
    """Template values of the table's rows; without the smoke scale, which replaces every dataset."""
    own = Results(run for run in results if run.scale != "smoke" and not run.larger)
    return [_describe(setting, own.select(setting=name)) for name, setting in SETTINGS.items()]


def _describe(setting: Setting, results: Results) -> dict[str, Any]:
    run = next(iter(ComparableRuns.from_results(results).by_key.values()), None)
    paper = setting.targets, setting.size.clients, setting.size.rows, setting.size.test_rows
    ours: tuple[int | None, ...] = (None,) * len(paper)
    if run:
        ours = run.grams.shape[-1], len(run.client_grams), run.train_rows, run.test_rows
    return {
        "title": setting.title,
        "kinds": list_kinds([run] if run else []),
        "dataset": run.dataset if run else "not run",
        "shape": " × ".join(map(str, setting.inputs)),
        "cells": list(zip(paper, ours, strict=True)),
    }
