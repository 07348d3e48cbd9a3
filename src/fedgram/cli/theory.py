"""Commands for people with data: moments, predict, explain, correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgram._util.errors import AccuracyError, InputError
from fedgram._util.text import pluralize
from fedgram.cli.app import Json, app, print_json
from fedgram.cli.inputs import LoadedMoments, is_moments, with_data
from fedgram.theory.penalty import Penalty

if TYPE_CHECKING:
    from fedgram._util.arrays import Array
    from fedgram.theory.moments import Moments
    from fedgram.theory.predict import Prediction

PAPER = Penalty()

LambdaH = Annotated[float, typer.Option("--lambda-h", help="Feature penalty lambda_H.")]
LambdaW = Annotated[float, typer.Option("--lambda-w", help="Head penalty lambda_W.")]
Figure = Annotated[str | None, typer.Option(help="Draw the prediction to this .png, .svg or .pdf file.")]
Initial = Annotated[
    str | None, typer.Option(help="JSON file with the initial Gram matrix; default: the identity.")
]


@app.command()
@with_data
def moments(
    given: LoadedMoments,
    output: Annotated[str | None, typer.Option("-o", "--output", help="File to write (.json).")] = None,
    as_json: Json = False,
) -> None:
    """Summarise each client's targets: count, mean and covariance.

    The file this writes (moments.json) is all that the other commands need; no row of data is in it, so
    sites can make it where the data is and send it: a site with its own rows only says --site NAME instead
    of --client, and the other commands join the files of all.
    """
    summary = given.moments
    given.check_kept(output)
    _check_read_back(output)
    if output is None or as_json:
        print_json(summary.document())
    if output is not None:
        summary.save(output)
        rows = f"{summary.count.sum():,.0f} rows of {pluralize(len(summary.clients), 'client')}"
        typer.echo(f"Wrote {output}: {pluralize(len(summary.targets), 'target')}, {rows}.", err=as_json)


@app.command()
@with_data
def predict(
    given: LoadedMoments,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    rounds: Annotated[
        int | None, typer.Option(help="Also predict the Gram after each of this many rounds.")
    ] = None,
    initial: Initial = None,
    figure: Figure = None,
    as_json: Json = False,
) -> None:
    """Say where federated averaging of the head will end, and how far that is from pooled training."""
    from fedgram.display import prediction_json, prediction_tables

    prediction, gap = _predict(given.moments, lambda_h, lambda_w)
    path = None if rounds is None and initial is None else _trajectory(prediction, initial, rounds)
    _draw(prediction, gap, figure, given)
    if as_json:
        print_json(prediction_json.prediction_document(prediction, gap, path))
    else:
        prediction_tables.print_prediction(prediction, gap, path)
    _check_accuracy(prediction)


@app.command()
@with_data
def explain(
    given: LoadedMoments,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    figure: Figure = None,
    as_json: Json = False,
) -> None:
    """Say why it ends there: the three causes, and the clients and targets behind them."""
    from fedgram.display import prediction_json, prediction_tables

    prediction, gap = _predict(given.moments, lambda_h, lambda_w)
    _draw(prediction, gap, figure, given)
    if as_json:
        print_json(prediction_json.explanation_document(prediction, gap))
    else:
        prediction_tables.print_explanation(prediction, gap)
    _check_accuracy(prediction)


@app.command()
@with_data
def correct(
    given: LoadedMoments,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    strength: Annotated[float, typer.Option(help="Scale gamma of the correction, from 0 to 1.")] = 1.0,
    initial: Initial = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="File to write the correction to.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Work out the correction that removes the gap: what to exchange, and what each client then does."""
    from fedgram.display import prediction_json, prediction_tables
    from fedgram.theory.correct import correct as correction_of
    from fedgram.theory.predict import initial_head

    given.check_kept(output)
    summary = given.moments
    correction = correction_of(summary, Penalty(lambda_h, lambda_w), strength)
    targets = len(summary.targets)
    head = initial_head(_initial_gram(initial, targets), targets)
    document = prediction_json.correction_document(correction, head)
    if output is not None:
        from fedgram._util.files import write_json

        write_json(output, document)
    if as_json:
        print_json(document)
    else:
        prediction_tables.print_correction(correction, output)


def _check_read_back(output: str | None) -> None:
    """Refuse a name by which no command would know a moments file."""
    if output is not None and not is_moments(output):
        raise InputError(
            f"The moments file '{output}' must end in .json, by which commands tell it from data.",
            field="output",
        )


def _predict(summary: Moments, lambda_h: float, lambda_w: float) -> tuple[Prediction, Any]:
    from fedgram.theory.explain import explain as gap_of
    from fedgram.theory.predict import predict as prediction_of

    prediction = prediction_of(summary, Penalty(lambda_h, lambda_w))
    return prediction, gap_of(prediction)


def _initial_gram(path: str | None, targets: int) -> Array:
    import numpy as np

    from fedgram.theory.moments_file import read_matrix

    return np.eye(targets) if path is None else read_matrix(path)


def _trajectory(prediction: Prediction, initial: str | None, rounds: int | None) -> Array:
    if rounds is None:
        raise InputError("--initial needs --rounds: say how many rounds to predict.", field="rounds")
    return prediction.trajectory(_initial_gram(initial, len(prediction.moments.targets)), rounds)


def _draw(prediction: Prediction, gap: Any, path: str | None, given: LoadedMoments) -> None:
    given.check_kept(path)
    if path is not None:
        from fedgram.display.prediction_figure import draw_prediction

        draw_prediction(prediction, gap, path, source=f"Predicted from {given.source}")
        typer.echo(f"Wrote {path}.", err=True)


def _check_accuracy(prediction: Prediction) -> None:
    star = prediction.barycenter
    if not star.converged:
        raise AccuracyError(f"The limit was reached only to a relative residual of {star.residual:.1e}.")
