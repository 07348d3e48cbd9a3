"""The arguments by which every command for people with data is told its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from os.path import isdir, realpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedgram._util.errors import InputError
from fedgram._util.text import split_names
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.problem import Problem
from fedgram.data.tables.files import each_once, expanded, files_in, is_table
from fedgram.data.tables.read_rows import Reading, read_table

if TYPE_CHECKING:
    from fedgram.theory.moments import Moments

Data = Annotated[
    list[str],
    typer.Argument(
        help="Moments files (.json), or data: CSV, TSV (both also .gz), Parquet; folders, quoted globs.",
        show_default=False,
    ),
]
Client = Annotated[str | None, typer.Option(help="Column that names the client (site) of each row.")]
Site = Annotated[
    str | None, typer.Option(help="Name of the one client (site) that all rows belong to, if no column does.")
]
Targets = Annotated[
    str | None,
    typer.Option(help="Target columns, with commas between them; quotes around one that has a comma."),
]
Where = Annotated[
    str | None, typer.Option(help="Keep only rows that meet this SQL condition: 'year = 2016'.")
]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows without a client or a target.")
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Client weights: 'equal', numbers in client order, or NAME=NUMBER pairs; default: rows."
    ),
]


@dataclass(frozen=True)
class LoadedMoments:
    """The moments that a command works on, the paths that they come from, and the files these stand for."""

    moments: Moments
    paths: list[str]
    files: list[str]

    @property
    def source(self) -> str:
        """Where they come from, in words."""
        return ", ".join(self.paths)

    def check_kept(self, output: str | None) -> None:
        """Refuse to write over a file that was read."""
        check_not_overwritten(output, self.files)


def check_not_overwritten(output: str | Path | None, paths: Sequence[str]) -> None:
    """Refuse to write over one of the files that the paths stand for."""
    if output is not None and realpath(output) in map(realpath, expanded(paths)):
        raise InputError(
            f"'{output}' is what is read here, and would be lost; name another file to write.",
            field="output",
        )


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
    return get_type_hints(function, function.__globals__ | {"Given": LoadedMoments}, include_extras=True)


def load(
    data: Data,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    weights: Weights = None,
) -> LoadedMoments:
    """Read moments files, or the moments of a table; a file that is named twice counts once."""
    from fedgram.cli.options import parse_weights

    data = each_once(data)
    files = _files(data)
    if _of_moments(files):
        about_rows = {"client": client, "site": site, "targets": targets, "where": where}
        _refuse(about_rows | {"drop-missing": drop_missing})
        summary = _joined(files)
    else:
        from fedgram.data.tables.read_moments import read_moments

        named = split_names(targets or "")
        _require("targets", "--targets", named)
        _require("client", "--client (or --site)", client or site)
        summary = read_moments(
            data, client=client, site=site, targets=named, where=where, drop_missing=drop_missing,
            on_warning=lambda sentence: typer.echo(sentence, err=True),
        )  # fmt: skip
    if weights is not None:
        summary = summary.weighted(parse_weights(weights, summary.clients))
    return LoadedMoments(summary, data, files)


def _files(data: list[str]) -> list[str]:
    """The files that paths stand for: a folder without tables stands for the moments files in it."""
    return each_once(file for path in data for file in _moments_in(path) or expanded([path]))


def _moments_in(path: str) -> list[str]:
    """The moments files in a folder, unless there are tables."""
    inside = files_in(path) if isdir(path) else []
    return [] if any(map(is_table, inside)) else [file for file in inside if is_moments(file)]


def is_moments(file: str) -> bool:
    """Whether a file holds moments by its name."""
    return file.lower().endswith(".json")


def _of_moments(files: list[str]) -> bool:
    """Whether these are moments files; refuses some of them among others."""
    kinds = {is_moments(file): file for file in files}
    if len(kinds) == 2:
        raise InputError(
            f"'{kinds[True]}' holds moments and '{kinds[False]}' rows, which cannot be joined; run 'fedgram "
            "moments' on the rows first, and give moments files only.",
            field="data",
        )
    return True in kinds


def _require(field: str, option: str, given: Any) -> None:
    """Refuse data without what must be said of it."""
    if not given:
        raise InputError(f"Reading data needs {option}; only moments files (.json) do not.", field=field)


def _refuse(about_rows: dict[str, Any]) -> None:
    """Refuse options that choose or name rows where there are none."""
    for name, value in about_rows.items():
        if value:
            raise InputError(
                f"--{name} is for data, and a moments file has no rows; leave it out, or name the data.",
                field=name.replace("-", "_"),
            )


def _joined(files: list[str]) -> Moments:
    """The clients of all moments files; one that is in several has the rows of all of them."""
    from fedgram.theory.moments import Moments

    parts = [Moments.load(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        if len(files) > 1 and not part.weighed_by_rows:
            raise InputError(
                f"The weights in '{file}' are relative to its own clients; leave them out and say --weights "
                "for all.",
                field="weights",
            )
    return parts[0].merged(*parts[1:]) if parts[1:] else parts[0]


def load_problem(dataset: str, data_dir: Path | None, options: Options, reading: Reading) -> Problem:
    """The dataset of a name, or the table in a file."""
    if dataset in registry.names() or not (Path(dataset).suffix or Path(dataset).exists()):
        _refuse_for_dataset(reading.given, "a CSV, TSV or Parquet file", dataset)
        return registry.load(dataset, data_dir, options)
    _refuse_for_dataset(
        {"--variant": options.variant, "--larger": options.larger}, "a dataset with a name", dataset
    )
    if missing := [flag for flag, value in reading.needed.items() if not value]:
        raise InputError(f"Training on a table needs {missing[0]}.", field=_field(missing[0]))
    return read_table(dataset, reading, options.seed)


def _refuse_for_dataset(flags: dict[str, object], kind: str, dataset: str) -> None:
    for flag, given in flags.items():
        if given:
            raise InputError(
                f"{flag} is for {kind}, and '{dataset}' is none; leave it out, or train on such.",
                field=_field(flag),
            )


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
