"""Commands on target moments: moments, predict, explain, correct."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from fedgram._util.errors import AccuracyError, InputError
from fedgram._util.text import split_names
from fedgram.cli.app import app, print_json
from fedgram.cli.checks import check_figure, check_not_overwritten, check_suffix
from fedgram.cli.load_moments import LoadedMoments, TargetColumns, load_moments
from fedgram.cli.options import (
    AllClients,
    Client,
    Data,
    DropMissing,
    Figure,
    Initial,
    Json,
    LambdaH,
    LambdaW,
    MinRows,
    Site,
    Targets,
    Units,
    Weights,
    Where,
    output_option,
    table_option,
)
from fedgram.cli.parsing import parse_units
from fedgram.cli.privacy import Bounds, Delta, Epsilon, check_release, release_moments
from fedgram.theory.penalty import Penalty

if TYPE_CHECKING:
    from fedgram._util.arrays import Array
    from fedgram.display.analysis import Analysis
    from fedgram.theory.intervals import Intervals
    from fedgram.theory.moments import Moments
    from fedgram.theory.predict import Prediction

PAPER = Penalty()

# All Gram matrices are printed: with ten targets, so many are 10 million numbers.
MAX_ROUNDS = 100_000

# `explain` standardizes by default if one target's pooled standard deviation is so many times another's.
DIFFERENT_SCALES = 10.0

Robust = Annotated[
    bool,
    table_option("--robust", help="Clip targets to median ± 5 robust deviations (1.4826 MAD) per client."),
]
Time = Annotated[
    str | None,
    table_option(help="Columns that order a client's rows in time; intervals then resample blocks of rows."),
]
Standardize = Annotated[
    bool | None,
    typer.Option(
        "--standardize/--no-standardize",
        help="Divide each target by its pooled standard deviation. Default: only in `explain`, if these "
        "deviations differ by more than a factor of 10.",
        show_default=False,
    ),
]
NumberOfResamples = Annotated[
    int | None,
    typer.Option(
        "--resamples", help="Resamples for intervals; 0 for none. Default: as many as fit in 0.3 s."
    ),
]

OutputFile = Annotated[str | None, output_option("-o", "--output", help="JSON file to write.")]


@app.command()
def moments(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    min_rows: MinRows = 0,
    robust: Robust = False,
    weights: Weights = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    bounds: Bounds = None,
    output: OutputFile = None,
    as_json: Json = False,
) -> None:
    """Compute the row count, target mean and target covariance of each client.

    The output file contains no rows, and the other commands need nothing else. A site that has only its own
    rows passes --site NAME instead of --client. The other commands merge the files of several sites.
    """
    from fedgram.display.sentences import dimensions

    check_suffix(output, "A moments file", ".json")
    is_private = check_release(epsilon, delta, bounds, len(split_names(targets or "")), is_robust=robust)
    columns = TargetColumns(client, site, targets, where, drop_missing, min_rows, robust)
    loaded = load_moments(data, columns, weights, with_rows=is_private)
    summary = loaded.moments
    if epsilon is not None and delta is not None and bounds is not None:
        summary = release_moments(loaded, epsilon, delta, bounds)
    check_not_overwritten(output, loaded.files)
    if output is None or as_json:
        print_json(summary.document())
    if output is not None:
        summary.save(output)
        private = f" Private: epsilon {epsilon:g}, delta {delta:g}." if epsilon and delta else ""
        typer.echo(f"Wrote {output}: {dimensions(summary)}.{private}", err=as_json)


@app.command()
def predict(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    min_rows: MinRows = 0,
    robust: Robust = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    standardize: Standardize = None,
    units: Units = None,
    rounds: Annotated[
        int | None, typer.Option(help="Also predict the Gram matrix after each of this many rounds.")
    ] = None,
    initial: Initial = None,
    proximal: Annotated[
        float | None,
        typer.Option(help="Also predict where training with this proximal weight ends, and its rounds."),
    ] = None,
    figure: Figure = None,
    show_all: AllClients = False,
    as_json: Json = False,
) -> None:
    """Predict the result of federated averaging and its gap to centralized training."""
    from fedgram.display import prediction_json, prediction_tables
    from fedgram.theory.proximal import check_proximal

    penalty = Penalty(lambda_h, lambda_w)
    if initial is not None and rounds is None:
        raise InputError("--initial needs --rounds.", field="rounds")
    if rounds is not None and rounds < 0:
        raise InputError(f"--rounds must be 0 or more, not {rounds}.", field="rounds")
    if rounds is not None and rounds > MAX_ROUNDS:
        raise InputError(f"--rounds {rounds} is too many. Pass at most {MAX_ROUNDS:,}.", field="rounds")
    if proximal is not None:
        check_proximal(proximal)
    check_figure(figure)
    columns = TargetColumns(client, site, targets, where, drop_missing, min_rows, robust)
    loaded = load_moments(data, columns, weights, with_rows=True)
    names = parse_units(units, loaded.moments.targets)
    analysis = _analyze(loaded, penalty, bool(standardize), names, resamples=0)
    path = None
    if rounds is not None:
        start = _initial_gram(initial, len(loaded.moments.targets))
        path = analysis.prediction.trajectory(start, rounds, proximal or 0.0)
    limit = None if proximal is None else analysis.prediction.proximal_limit(proximal)
    _draw(analysis, figure, loaded)
    if as_json:
        print_json(prediction_json.prediction_document(analysis, path, proximal, limit))
    else:
        prediction_tables.print_prediction(analysis, path, proximal, limit, show_all=show_all)
    _check_accuracy(analysis.prediction)


@app.command()
def explain(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    min_rows: MinRows = 0,
    time: Time = None,
    robust: Robust = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    standardize: Standardize = None,
    units: Units = None,
    resamples: NumberOfResamples = None,
    figure: Figure = None,
    show_all: AllClients = False,
    as_json: Json = False,
) -> None:
    """Explain what federated averaging does to predictions, how certain this is, and why it happens."""
    from fedgram.display import prediction_json, prediction_tables
    from fedgram.theory.intervals import LEAST_RESAMPLES

    if resamples and resamples < LEAST_RESAMPLES:
        raise InputError(
            f"--resamples must be 0 for none, or {LEAST_RESAMPLES} or more, not {resamples}.",
            field="resamples",
        )
    if time is not None and not split_names(time):
        raise InputError("--time names no column. Name one, or leave it out.", field="time")
    penalty = Penalty(lambda_h, lambda_w)
    check_figure(figure)
    columns = TargetColumns(client, site, targets, where, drop_missing, min_rows, robust, time)
    loaded = load_moments(data, columns, weights, with_rows=True)
    if standardize is None:
        deviation = loaded.moments.pooled.deviation
        standardize = bool(deviation.max() > DIFFERENT_SCALES * deviation.min() > 0)
    names = parse_units(units, loaded.moments.targets)
    analysis = _analyze(loaded, penalty, standardize, names, resamples, in_time=time is not None)
    _draw(analysis, figure, loaded)
    if as_json:
        print_json(prediction_json.explanation_document(analysis))
    else:
        prediction_tables.print_explanation(analysis, show_all=show_all)
    _check_accuracy(analysis.prediction)


@app.command()
def correct(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    min_rows: MinRows = 0,
    robust: Robust = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    standardize: Standardize = None,
    units: Units = None,
    strength: Annotated[float, typer.Option(help="Strength gamma of the correction, from 0 to 1.")] = 1.0,
    initial: Initial = None,
    output: OutputFile = None,
    show_all: AllClients = False,
    as_json: Json = False,
) -> None:
    """Compute the correction that removes the gap: the numbers to exchange, and each client's extra loss."""
    from fedgram.display import prediction_json, prediction_tables
    from fedgram.theory.correct import check_strength
    from fedgram.theory.correct import correct as compute_correction
    from fedgram.theory.predict import initial_head

    penalty = Penalty(lambda_h, lambda_w)
    check_strength(strength)
    check_suffix(output, "A correction file", ".json")
    columns = TargetColumns(client, site, targets, where, drop_missing, min_rows, robust)
    loaded = load_moments(data, columns, weights, with_rows=True)
    check_not_overwritten(output, loaded.files)
    summary, scale = _scale_targets(loaded.moments, bool(standardize))
    correction = compute_correction(summary, penalty, strength)
    size, names = len(summary.targets), parse_units(units, summary.targets)
    head = initial_head(_initial_gram(initial, size), size)
    analysis = None
    with suppress(InputError):  # the limit without a correction need not exist
        analysis = _analyze(loaded, penalty, bool(standardize), names, resamples=0)
    found = analysis.effects if analysis else None
    document = prediction_json.correction_document(correction, head, found, units=names, scale=scale)
    if output is not None:
        from fedgram._util.files import write_json

        write_json(output, document)
    if as_json:
        print_json(document)
    else:
        prediction_tables.print_correction(correction, output, analysis, show_all=show_all)


def _analyze(
    loaded: LoadedMoments,
    penalty: Penalty,
    standardize: bool,
    units: tuple[str, ...],
    resamples: int | None,
    *,
    in_time: bool = False,
) -> Analysis:
    """Predict, explain and resample; None resamples as many as take a moment."""
    from fedgram.display.analysis import Analysis, find_heavy_tails
    from fedgram.theory.effects import effects
    from fedgram.theory.explain import explain as compute_gap
    from fedgram.theory.intervals import default_resamples
    from fedgram.theory.noise import check_noise, noise_intervals
    from fedgram.theory.predict import predict as compute_prediction

    summary, scale = _scale_targets(loaded.moments, standardize)
    prediction = compute_prediction(summary, penalty)
    noise = noise_intervals(prediction, scale=scale)
    if noise is not None:
        check_noise(prediction, noise)
    resamples = default_resamples(prediction) if resamples is None else resamples
    sample = loaded.sample
    return Analysis(
        gap=compute_gap(prediction),
        effects=effects(prediction, scale),
        units=units,
        scale=scale,
        intervals=_resample(loaded, prediction, scale, resamples, in_time) if resamples else None,
        sampled="moments" if sample is None else "blocks of rows" if in_time else "rows",
        outliers=[] if sample is None else sample.outliers,
        relative_without_outliers=_gap_without_outliers(loaded, penalty, scale),
        is_robust=sample is not None and sample.is_robust,
        heavy_tails=[] if sample is None else find_heavy_tails(sample.rows, summary.targets),
        noise=noise,
    )


def _scale_targets(summary: Moments, standardize: bool) -> tuple[Moments, Array | None]:
    """Divide targets by their pooled standard deviations if asked to.

    Return also what targets were divided by in all, with that of a dataset, or None.
    """
    scaled = summary.scaled(summary.pooled.deviation) if standardize else summary
    return scaled, scaled.scale if (scaled.scale != 1).any() else None


def _resample(
    loaded: LoadedMoments, prediction: Prediction, scale: Array | None, resamples: int, in_time: bool
) -> Intervals:
    from fedgram.data.resampling import row_sampler
    from fedgram.theory.intervals import intervals

    sampler = None
    if loaded.sample is not None:
        unit = 1.0 if scale is None else scale
        rows = {name: values / unit for name, values in loaded.sample.rows.items()}
        sampler = row_sampler(rows, prediction.moments.count, in_time=in_time)
    return intervals(prediction, sampler=sampler, resamples=resamples, scale=scale)


def _gap_without_outliers(loaded: LoadedMoments, penalty: Penalty, scale: Array | None) -> float | None:
    from fedgram.theory.predict import predict as compute_prediction

    rest = loaded.sample.without_outliers if loaded.sample is not None else None
    if rest is None or rest.clients != loaded.moments.clients:
        return None
    if not loaded.moments.is_weighted_by_rows:
        rest = rest.weighted(loaded.moments.client_weights)
    with suppress(InputError):  # it may have no limit
        return float(compute_prediction(_scale_targets(rest, scale is not None)[0], penalty).relative_gap)
    return None


def _initial_gram(path: str | None, targets: int) -> Array:
    import numpy as np

    from fedgram.theory.moments_file import read_matrix

    return np.eye(targets) if path is None else read_matrix(path)


def _draw(analysis: Analysis, path: str | None, loaded: LoadedMoments) -> None:
    check_not_overwritten(path, loaded.files)
    if path is not None:
        from fedgram.display.prediction_figure import draw_prediction

        source = f"Predicted from {', '.join(loaded.paths)}"
        draw_prediction(analysis.prediction, analysis.gap, path, source=source)
        typer.echo(f"Wrote {path}.", err=True)


def _check_accuracy(prediction: Prediction) -> None:
    star = prediction.barycenter
    if not star.converged:
        raise AccuracyError(f"The barycenter did not converge: relative residual {star.residual:.1e}.")
