"""Show results: sentences, tidy columns and a plot of each class, in one table.

The methods `summary`, `to_frame`, `plot` and `_repr_html_` of `DisplayMethods` call the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from html import escape
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import number_targets, percent, pluralize
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.display import prediction_tables, run_sentences, sentences
from fedgram.display import result_columns as columns
from fedgram.display import result_plots as plots
from fedgram.display.advice import describe_advice, plot_advice
from fedgram.display.analysis import Analysis, analyze_gap
from fedgram.display.prediction_figure import plot_gap, plot_prediction
from fedgram.display.result_columns import Columns
from fedgram.display.run_figure import plot_errors, plot_settings
from fedgram.runs import Runs, StoredRun
from fedgram.runs.advice import Advice
from fedgram.runs.compare import Comparison, Group, compare_runs
from fedgram.runs.measure import RunMeasurement, measure
from fedgram.theory.correct import Correction
from fedgram.theory.effects import Effects
from fedgram.theory.explain import Gap, explain
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import Barycenter
from fedgram.theory.intervals import Intervals
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import Prediction, predict
from fedgram.theory.select import Alignment, SolvedReturn

MAX_HTML_ROWS = 12  # of a table in a notebook; to_frame() has all


class View(NamedTuple):
    """How to show a class: its sentences, its columns, its plot, and its leading axes if it may have some."""

    describe: Callable[[Any], Iterable[str]]
    columns: Callable[[Any], Columns]
    plot: Callable[[Any, Any], Any]
    leading_axes: Callable[[Any], tuple[int, ...]] = lambda _: ()


def summarize(result: Any) -> str:
    """Return the sentences of a result, one per line."""
    return "\n".join(_view(result, "summarized").describe(result))


def to_frame(result: Any) -> Any:
    """Return a tidy pandas.DataFrame."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise InputError(
            "to_frame() needs pandas. Install it with pip install pandas.", field="pandas"
        ) from None
    return DataFrame(_view(result, "converted").columns(result))


def plot(result: Any, ax: Any = None) -> Any:
    """Draw on Axes, new ones by default, and return them."""
    return _view(result, "drawn").plot(result, ax)


def to_html(result: Any) -> str:
    """Return the sentences and the first rows of the table; names are escaped."""
    title = f"<strong>{escape(repr(result))}</strong>"
    with suppress(InputError):  # several problems, or a run without a finished round: the title says so
        view = _view(result, "shown")
        lines = "".join(map(_html_line, view.describe(result)))
        return f"<div>{title}<ul>{lines}</ul>{_html_table(view.columns(result))}</div>"
    return f"<div>{title}</div>"


def _view(result: Any, action: str) -> View:
    view = next(VIEWS[each] for each in type(result).__mro__ if each in VIEWS)
    if axes := view.leading_axes(result):
        raise InputError(
            f"A {type(result).__name__} of several problems, with leading axes {axes}, cannot be {action}. "
            "Compute that of one problem.",
            field="shape",
        )
    return view


def _html_line(line: str) -> str:
    indent = ' style="margin-left: 2em"' if line.startswith(" ") else ""
    return f"<li{indent}>{escape(line.strip())}</li>"


def _html_table(table: Columns) -> str:
    rows = len(next(iter(table.values())))
    head = "".join(f"<th>{escape(name)}</th>" for name in table)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_html_cell(value))}</td>' for value in row)}</tr>"
        for row in islice(zip(*table.values(), strict=True), MAX_HTML_ROWS)
    )
    rest = rows - MAX_HTML_ROWS
    omitted = f"<p>and {pluralize(rest, 'more row')} (to_frame() has all)</p>" if rest > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{omitted}"


def _html_cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _describe_prediction(prediction: Prediction) -> list[str]:
    analysis = analyze_gap(explain(prediction))
    return prediction_tables.sentences_of(prediction_tables.describe_prediction(analysis))


def _describe_explanation(analysis: Analysis) -> list[str]:
    return prediction_tables.sentences_of(prediction_tables.describe_explanation(analysis))


def _describe_effects(effects: Effects) -> list[str]:
    return sentences.mean_errors(analyze_gap(explain(effects.prediction), effects.scale))


def _describe_correction(correction: Correction) -> list[str]:
    analysis = None
    with suppress(InputError):  # the limit without a correction need not exist
        analysis = analyze_gap(explain(predict(correction.moments, correction.penalty)))
    return prediction_tables.sentences_of(prediction_tables.describe_correction(correction, analysis))


def _describe_moments(moments: Moments) -> list[str]:
    size = f"{sentences.dimensions(moments)}."
    return [size, sentences.mean_variance(moments.pooled, moments.targets)]


def _describe_pooled(pooled: Pooled) -> list[str]:
    return [sentences.mean_variance(pooled, number_targets(len(pooled.mean)))]


def _describe_penalty(penalty: Penalty) -> list[str]:
    inactive = (
        "Directions with a target variance of at most lambda_h * lambda_w = "
        f"{penalty.threshold:g} are inactive."
    )
    return [sentences.penalties(penalty), inactive]


def _describe_barycenter(barycenter: Barycenter) -> list[str]:
    return [sentences.residual(barycenter), *([barycenter.message] if barycenter.message else [])]


def _describe_alignment(aligned: Alignment) -> list[str]:
    before = aligned.head @ aligned.rotation.T
    moved = psd.frobenius(aligned.head - before) / psd.frobenius(before)
    return [f"The rotation moved the head by {percent(float(moved))} of its size; predictions stay the same."]


def _describe_solved(solved: SolvedReturn) -> list[str]:
    variances = zip(np.diag(solved.explained), number_targets(len(solved.explained)), strict=True)
    explained = ", ".join(f"{value:.4g} of {name}" for value, name in variances)
    clipped = f"{pluralize(solved.clipped, 'inactive direction')} clipped." if solved.clipped else ""
    return [f"The inputs explain these variances: {explained}.", *([clipped] if clipped else [])]


def _describe_problem(problem: Problem) -> list[str]:
    moments = problem.moments
    return [
        f"{problem.name} ({problem.kind}): {sentences.dimensions(moments)}. {sentences.inputs(problem)}",
        sentences.mean_variance(moments.pooled, moments.targets),
    ]


def _describe_split(split: Split) -> list[str]:
    targets = pluralize(split.targets.shape[1], "target")
    return [f"{pluralize(len(split), 'row')} of {targets}. Inputs {sentences.input_shape(split)}."]


def _describe_run(run: StoredRun) -> list[str]:
    return run_sentences.describe_run(run, measure(run) if run.account.rounds else None)


def _compare_alone(measured: RunMeasurement) -> Comparison:
    return Comparison((Group((measured,)),))


def _of_moments(result: Any) -> tuple[int, ...]:
    """Return the leading axes of a result of moments."""
    return tuple(result.moments.mean.shape[:-2])


def _of_prediction(result: Any) -> tuple[int, ...]:
    """Return the leading axes of a result of a prediction."""
    return _of_moments(result.prediction)


VIEWS: dict[type, View] = {
    Prediction: View(_describe_prediction, columns.prediction_columns, plot_prediction, _of_moments),
    Gap: View(
        lambda gap: _describe_explanation(analyze_gap(gap)), columns.gap_columns, plot_gap, _of_prediction
    ),
    Effects: View(_describe_effects, columns.effects_columns, plots.plot_effects, _of_prediction),
    Intervals: View(
        lambda found: _describe_explanation(analyze_gap(found.gap, found.scale, found)),
        columns.intervals_columns,
        plots.plot_intervals,
    ),
    Correction: View(_describe_correction, columns.correction_columns, plots.plot_correction, _of_moments),
    Moments: View(
        _describe_moments,
        columns.moments_columns,
        plots.plot_moments,
        lambda moments: moments.mean.shape[:-2],
    ),
    Pooled: View(
        _describe_pooled, columns.pooled_columns, plots.plot_pooled, lambda pooled: pooled.mean.shape[:-1]
    ),
    Penalty: View(_describe_penalty, columns.penalty_columns, plots.plot_penalty),
    Barycenter: View(
        _describe_barycenter,
        lambda barycenter: columns.gram_columns(barycenter.gram),
        plots.plot_barycenter,
        lambda barycenter: barycenter.gram.shape[:-2],
    ),
    Alignment: View(
        _describe_alignment,
        lambda aligned: columns.head_columns(aligned.head),
        lambda aligned, ax: plots.plot_head(aligned.head, ax),
        lambda aligned: aligned.head.shape[:-2],
    ),
    SolvedReturn: View(
        _describe_solved,
        lambda solved: columns.head_columns(solved.head),
        lambda solved, ax: plots.plot_head(solved.head, ax),
    ),
    Problem: View(
        _describe_problem,
        columns.problem_columns,
        lambda problem, ax: plots.plot_moments(problem.moments, ax),
    ),
    Split: View(_describe_split, columns.split_columns, plots.plot_split),
    Runs: View(
        lambda runs: map(run_sentences.heading, runs),
        columns.runs_columns,
        lambda runs, ax: plot_settings(compare_runs(runs), ax),
    ),
    StoredRun: View(
        _describe_run,
        lambda run: columns.measurement_columns(measure(run)),
        lambda run, ax: plot_errors(_compare_alone(measure(run)), ax),
    ),
    RunMeasurement: View(
        run_sentences.describe_measurement,
        columns.measurement_columns,
        lambda measured, ax: plot_errors(_compare_alone(measured), ax),
    ),
    Comparison: View(run_sentences.describe_comparison, columns.comparison_columns, plot_errors),
    Advice: View(lambda advice: describe_advice(advice, advice.targets), columns.advice_columns, plot_advice),
}
