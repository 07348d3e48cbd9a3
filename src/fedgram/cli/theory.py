"""Commands on target moments: moments, predict, explain, correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedgram._util.errors import AccuracyError, InputError
from fedgram._util.text import pluralize
from fedgram.cli.app import app, print_json
from fedgram.cli.inputs import LoadedMoments, check_not_overwritten, is_moments_file, load_moments
from fedgram.cli.options import (
    Client,
    Data,
    DropMissing,
    Figure,
    Initial,
    Json,
    LambdaH,
    LambdaW,
    Site,
    Targets,
    Weights,
    Where,
    output_option,
)
from fedgram.theory.penalty import Penalty

if TYPE_CHECKING:
    from fedgram._util.arrays import Array
    from fedgram.theory.explain import Gap
    from fedgram.theory.predict import Prediction

PAPER = Penalty()

OutputFile = Annotated[str | None, output_option("-o", "--output", help="JSON file to write.")]


@app.command()
def moments(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
    output: OutputFile = None,
    as_json: Json = False,
) -> None:
    """Compute the row count, target mean and target covariance of each client.

    The output file contains no rows, and the other commands need nothing else. A site that has only its own
    rows passes --site NAME instead of --client. The other commands merge the files of several sites.
    """
    loaded = load_moments(data, client, site, targets, where, drop_missing, weights)
    summary = loaded.moments
    check_not_overwritten(output, loaded.files)
    if output is not None and not is_moments_file(output):
        raise InputError(f"A moments file must end in .json: '{output}'.", field="output")
    if output is None or as_json:
        print_json(summary.document())
    if output is not None:
        summary.save(output)
        rows = f"{summary.count.sum():,.0f} rows of {pluralize(len(summary.clients), 'client')}"
        typer.echo(f"Wrote {output}: {pluralize(len(summary.targets), 'target')}, {rows}.", err=as_json)


@app.command()
def predict(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    rounds: Annotated[
        int | None, typer.Option(help="Also predict the Gram matrix after each of this many rounds.")
    ] = None,
    initial: Initial = None,
    figure: Figure = None,
    as_json: Json = False,
) -> None:
    """Predict the result of federated averaging and its gap to centralized training."""
    from fedgram.display import prediction_json, prediction_tables

    loaded = load_moments(data, client, site, targets, where, drop_missing, weights)
    prediction, gap = _predict(loaded, Penalty(lambda_h, lambda_w))
    if initial is not None and rounds is None:
        raise InputError("--initial needs --rounds.", field="rounds")
    path = None
    if rounds is not None:
        path = prediction.trajectory(_initial_gram(initial, len(loaded.moments.targets)), rounds)
    _draw(prediction, gap, figure, loaded)
    if as_json:
        print_json(prediction_json.prediction_document(prediction, gap, path))
    else:
        prediction_tables.print_prediction(prediction, gap, path)
    _check_accuracy(prediction)


@app.command()
def explain(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    figure: Figure = None,
    as_json: Json = False,
) -> None:
    """Explain the gap: its three causes, and the part of each client and target."""
    from fedgram.display import prediction_json, prediction_tables

    loaded = load_moments(data, client, site, targets, where, drop_missing, weights)
    prediction, gap = _predict(loaded, Penalty(lambda_h, lambda_w))
    _draw(prediction, gap, figure, loaded)
    if as_json:
        print_json(prediction_json.explanation_document(prediction, gap))
    else:
        prediction_tables.print_explanation(prediction, gap)
    _check_accuracy(prediction)


@app.command()
def correct(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    strength: Annotated[float, typer.Option(help="Strength gamma of the correction, from 0 to 1.")] = 1.0,
    initial: Initial = None,
    output: OutputFile = None,
    as_json: Json = False,
) -> None:
    """Compute the correction that removes the gap: the numbers to exchange, and each client's extra loss."""
    from fedgram.display import prediction_json, prediction_tables
    from fedgram.theory.correct import correct as compute_correction
    from fedgram.theory.predict import initial_head

    loaded = load_moments(data, client, site, targets, where, drop_missing, weights)
    check_not_overwritten(output, loaded.files)
    correction = compute_correction(loaded.moments, Penalty(lambda_h, lambda_w), strength)
    size = len(loaded.moments.targets)
    document = prediction_json.correction_document(
        correction, initial_head(_initial_gram(initial, size), size)
    )
    if output is not None:
        from fedgram._util.files import write_json

        write_json(output, document)
    if as_json:
        print_json(document)
    else:
        prediction_tables.print_correction(correction, output)


def _predict(loaded: LoadedMoments, penalty: Penalty) -> tuple[Prediction, Gap]:
    from fedgram.theory.explain import explain as compute_gap
    from fedgram.theory.predict import predict as compute_prediction

    prediction = compute_prediction(loaded.moments, penalty)
    return prediction, compute_gap(prediction)


def _initial_gram(path: str | None, targets: int) -> Array:
    import numpy as np

    from fedgram.theory.moments_file import read_matrix

    return np.eye(targets) if path is None else read_matrix(path)


def _draw(prediction: Prediction, gap: Gap, path: str | None, loaded: LoadedMoments) -> None:
    check_not_overwritten(path, loaded.files)
    if path is not None:
        from fedgram.display.prediction_figure import draw_prediction

        draw_prediction(prediction, gap, path, source=f"Predicted from {', '.join(loaded.paths)}")
        typer.echo(f"Wrote {path}.", err=True)


def _check_accuracy(prediction: Prediction) -> None:
    star = prediction.barycenter
    if not star.converged:
        raise AccuracyError(f"The barycenter did not converge: relative residual {star.residual:.1e}.")
