"""The application that all commands register with, and how it ends."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import click
import typer

import fedgram
from fedgram._util.errors import AccuracyError, InputError

app = typer.Typer(
    name="fedgram",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated regression whose outcome is known before it is trained.\n\n"
    "Several sites train one regression head together by averaging it. From each site's target mean and "
    "covariance alone, fedgram says where that ends (`predict`), why it differs from training on the pooled "
    "data (`explain`), and what removes the difference (`correct`).",
    epilog="Start with:  fedgram explain data.csv --client site --targets y1,y2",
)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, in full double precision.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgram {fedgram.__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version and exit."),
    ] = False,
) -> None:
    """Take what is said before a command."""


def print_json(document: Any) -> None:
    """Print one JSON object in full double precision."""
    typer.echo(json.dumps(document, allow_nan=False))


def main() -> None:
    """Run the command line; bad input exits with 2, an accuracy that was not reached with 1."""
    try:
        code = app(standalone_mode=False)
    except AccuracyError as error:
        code = _fail(str(error), 1)
    except InputError as error:
        code = _fail(error.message, 2, client=error.client, field=error.field)
    except typer.Abort:
        code = 130
    except OSError as error:
        code = _fail(_refused_by_the_system(error), 2)
    except click.ClickException as error:
        message = error.format_message()
        code = _fail(message, 2) if message else 2  # without arguments the help has been shown instead
    sys.exit(code)


def _refused_by_the_system(error: OSError) -> str:
    file = f" '{error.filename}'" if error.filename else ""
    return (
        f"Cannot read or write{file} ({error.strerror or error}); check permissions and free space, then run "
        "the same command again."
    )


def _fail(message: str, code: int, client: str | None = None, field: str | None = None) -> int:
    if "--json" in sys.argv:
        problem = {"error": {"message": message, "client": client, "field": field}}
        typer.echo(json.dumps(problem), err=True)
    else:
        typer.echo(f"fedgram: {message}", err=True)
    return code
