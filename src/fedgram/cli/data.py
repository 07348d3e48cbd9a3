"""Commands for datasets: data list, data check, data fetch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import Json, app, print_json

if TYPE_CHECKING:
    from fedgram.data.datasets.dataset import Dataset

data_app = typer.Typer(
    no_args_is_help=True,
    help="Datasets: which there are, whether their files are here and sound, and how to get them.",
)
app.add_typer(data_app, name="data")

Name = Annotated[str, typer.Argument(help="A dataset; 'fedgram data list' names them all.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder that holds the files; default: $FEDGRAM_DATA, else the cache folder."),
]
Variant = Annotated[str, typer.Option(help="Variant of the files, for datasets that have several.")]
DataSeed = Annotated[
    int, typer.Option(help="Seed of every random choice about the data: which rows, which shifts.")
]
Larger = Annotated[bool, typer.Option("--larger", help="The paper's larger training set.")]


@data_app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Name all datasets: present or missing, size, licence, and where each is published."""
    from fedgram.data.datasets import registry
    from fedgram.data.datasets.dataset import data_directory
    from fedgram.data.datasets.inspection import presence

    folder = data_directory(data_dir)
    found = [presence(registry.dataset(name), folder) for name in registry.names()]
    if as_json:
        print_json({"data_dir": str(folder), "datasets": [each.document() for each in found]})
    else:
        from fedgram.display import dataset_tables

        dataset_tables.print_list(folder, found)


@data_app.command()
def check(
    name: Name,
    data_dir: DataDir = None,
    variant: Variant = "",
    data_seed: DataSeed = 0,
    larger: Larger = False,
    as_json: Json = False,
) -> None:
    """Open every file of a dataset, and say what its clients hold and what federated averaging will lose.

    The files are read afresh, whatever the cache holds. Exits with 2 if one is missing, damaged, or not the
    published one.
    """
    from fedgram.data.datasets.dataset import Options
    from fedgram.data.datasets.inspection import inspect_dataset

    inspection = inspect_dataset(name, data_dir, Options(data_seed, variant, larger))
    if as_json:
        print_json(inspection.document())
    else:
        from fedgram.display import dataset_tables

        dataset_tables.print_inspection(inspection)


@data_app.command()
def fetch(
    name: Name,
    data_dir: DataDir = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Accept the dataset's licence without being asked.")
    ] = False,
) -> None:
    """Download the public files of a dataset, or say what to do where that needs a person."""
    from fedgram.cli.progress import progress_bar
    from fedgram.data.datasets import registry
    from fedgram.data.datasets.dataset import Options, data_directory
    from fedgram.data.datasets.download import fetch as download
    from fedgram.display import dataset_tables

    entry, folder = registry.dataset(name), data_directory(data_dir)
    accepted = not entry.downloads or _accepted(entry, accept_licence)
    with progress_bar() as progress:
        download(entry, folder, licence_accepted=accepted, on_bytes=progress.on_bytes)
    for path in entry.find(folder, Options()):
        typer.echo(f"{path}: {dataset_tables.format_bytes(path.stat().st_size)}")


def _accepted(entry: Dataset, beforehand: bool) -> bool:
    """Show the licence, and ask unless it was accepted; without a person at the terminal nobody can."""
    typer.echo(f"{entry.title}\nLicence: {entry.licence}\nPlease cite: {entry.citation}\n{entry.published}")
    if not beforehand and not sys.stdin.isatty():
        raise InputError(
            f"The licence of '{entry.name}' must be accepted first: add --accept-licence.", field="licence"
        )
    return beforehand or typer.confirm("Do you accept this licence?")
