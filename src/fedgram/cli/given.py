"""The arguments by which every command for people with data is told its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedgram.errors import InputError

if TYPE_CHECKING:
    from fedgram.moments import Moments

Data = Annotated[
    list[str],
    typer.Argument(
        help="A moments file (.json), or data: CSV, TSV, Parquet (also .gz), folders, quoted globs.",
        show_default=False,
    ),
]
Client = Annotated[str | None, typer.Option(help="Column that names the client (site) of each row.")]
Targets = Annotated[str | None, typer.Option(help="Target columns, separated by commas.")]
Where = Annotated[
    str | None, typer.Option(help="Keep only rows that meet this SQL condition: 'year = 2016'.")
]
DropMissing = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with a missing target.")]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Client weights: 'equal', numbers in client order, or NAME=NUMBER pairs; default: rows."
    ),
]


@dataclass(frozen=True)
class Given:
    """The moments that a command works on, and the files they come from, in words."""

    moments: Moments
    source: str


def with_data(command: Callable[..., None]) -> Callable[..., None]:
    """Let the arguments of `load` stand in the place of a command's first one, which becomes what they give.

    typer reads a command's options off its signature; this is how all commands have the same ones.
    """
    shared = signature(load).parameters
    _, *own = signature(command).parameters.values()
    types = _types(load) | _types(command)

    @wraps(command)
    def run(**options: Any) -> None:
        command(load(**{name: options.pop(name) for name in shared}), **options)

    named = [
        each.replace(kind=Parameter.KEYWORD_ONLY, annotation=types[each.name])
        for each in (*shared.values(), *own)
    ]
    run.__signature__ = Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = types
    return run


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's arguments, with what they tell typer."""
    return get_type_hints(function, function.__globals__ | {"Given": Given}, include_extras=True)


def load(
    data: Data,
    client: Client = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
) -> Given:
    """Read a moments file, or the moments of a table."""
    from fedgram.moments import Moments
    from fedgram.weights import parse_weights

    if len(data) == 1 and data[0].endswith(".json"):
        summary = Moments.load(data[0])
    else:
        from fedgram.tables import read_moments

        if client is None or targets is None:
            missing = "--client" if client is None else "--targets"
            raise InputError(
                f"Reading data needs {missing}; only a moments file (.json) does not.", field=missing
            )
        names = [name.strip() for name in targets.split(",")]
        summary = read_moments(data, client=client, targets=names, where=where, drop_missing=drop_missing)
    if weights is not None:
        summary = summary.weighted(parse_weights(weights, summary.clients))
    return Given(summary, ", ".join(data))
