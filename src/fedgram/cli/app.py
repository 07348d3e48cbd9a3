"""Root Typer application, error messages and exit codes."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedgram._util.encodings import accept_all_characters
from fedgram._util.errors import AccuracyError, InputError
from fedgram._util.text import escape_text
from fedgram._util.version import __version__

# The base class of all usage errors. Typer 0.26 and later vendor Click and do not export this class.
UsageError: Any = typer.BadParameter.__base__

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

LONGEST_LINE = 10_000
"""Characters of a line that are shown."""

COMMANDS = (
    "advise", "moments", "predict", "explain", "correct", "explore", "train", "runs", "reproduce", "data",
    "report", "federate",
)  # fmt: skip
"""All commands in the order of --help and of the README's table."""


class OrderedGroup(TyperGroup):
    """List commands in the order of `COMMANDS`, not of imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return sorted(super().list_commands(ctx), key=COMMANDS.index)


app = typer.Typer(
    name="fedgram",
    cls=OrderedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Predict the outcome of federated regression before you train.\n\n"
    "Several sites train one regression head by averaging it. From the target mean and covariance of each "
    "site, fedgram predicts the result (`predict`). It explains the gap to training on the pooled data "
    "(`explain`), and computes a correction (`correct`). It also trains the alternatives and says which "
    "sites gain by joining (`advise`).",
    epilog="Start with:  fedgram advise data.csv --client site --inputs x1,x2 --targets y",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedgram {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def print_json(document: Any) -> None:
    """Print one JSON object in full double precision."""
    typer.echo(json.dumps(document, allow_nan=False))


def print_line(text: str, *, err: bool = False) -> None:
    """Print one line on standard output or error; control characters, as names may have, are escaped."""
    typer.echo(escape_text(text, LONGEST_LINE), err=err)


def print_warning(message: str) -> None:
    """Print a warning on standard error."""
    print_line(message, err=True)


def main() -> None:
    """Run the command line. Exit codes: 2 for bad input, 1 for missed accuracy, 130 after Ctrl-C."""
    accept_all_characters(sys.stdout, sys.stderr)
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # Typer's own, outside of a progress bar
            code = _fail("Interrupted.", INTERRUPTED)
    except AccuracyError as error:
        code = _fail(str(error), 1)
    except InputError as error:
        code = _fail(error.message, 2, client=error.client, field=error.field)
    except typer.Abort as error:
        code = _fail(str(error) or "Interrupted.", INTERRUPTED)
    except OSError as error:
        file = f" '{error.filename}'" if error.filename else ""
        reason = error.strerror or error
        code = _fail(f"Cannot read or write{file} ({reason}). Check permissions and free space.", 2)
    except UsageError as error:
        message = error.format_message()
        code = _fail(message, 2) if message else 2  # without arguments, Typer has already shown the help
    except SystemExit as ended:
        # Typer and Rich exit with 1 if the reader of a pipe, such as `head`, closes it. That is no error.
        code = 0 if isinstance(ended.__context__, BrokenPipeError) else ended.code
    sys.exit(code)


def _fail(message: str, code: int, client: str | None = None, field: str | None = None) -> int:
    if "--json" in sys.argv:
        message = json.dumps({"error": {"message": message, "client": client, "field": field}})
        typer.echo(message, err=True)
    else:
        print_line(f"fedgram: {message}", err=True)
    return code
