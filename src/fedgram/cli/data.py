"""Commands on datasets: data list, data check, data fetch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import app, print_json
from fedgram.cli.options import DataDir, DataSeed, Json, Larger, Variant

if TYPE_CHECKING:
    from fedgram.data.datasets.dataset import Dataset

data_app = typer.Typer(no_args_is_help=True, help="List, check and download datasets.")
app.add_typer(data_app, name="data")

Name = Annotated[str, typer.Argument(help="Dataset name (see 'fedgram data list').")]


@data_app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List all datasets with their state, size, license and source."""
    from fedgram.data.datasets import registry
    from fedgram.data.datasets.dataset import data_directory
    from fedgram.data.datasets.inspection import check_presence

    folder = data_directory(data_dir)
    found = [check_presence(registry.dataset(name), folder) for name in registry.names()]
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
    """Check the files of a dataset; show its clients and the predicted gap of federated averaging.

    The command bypasses the cache and reads all files. It exits with 2 if a file is missing, damaged, or
    differs from the published one.
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
    accept_license: Annotated[
        bool, typer.Option("--accept-license", "--accept-licence", help="Accept the license without asking.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Download files that have no published checksum.")
    ] = False,
) -> None:
    """Download the files of a dataset, or show how to get them by hand."""
    from fedgram._util.text import format_bytes
    from fedgram.cli.progress import progress_bar
    from fedgram.data.datasets import registry
    from fedgram.data.datasets.dataset import Options, data_directory
    from fedgram.data.datasets.download import fetch as download

    entry, folder = registry.dataset(name), data_directory(data_dir)
    accepted = not entry.downloads or _confirm_license(entry, accept_license)
    with progress_bar() as progress:
        download(
            entry, folder, license_accepted=accepted, allow_insecure=insecure, on_bytes=progress.on_bytes
        )
    for path in entry.find(folder, Options()):
        typer.echo(f"{path}: {format_bytes(path.stat().st_size)}")


def _confirm_license(entry: Dataset, accepted: bool) -> bool:
    """Show the license and prompt for it, unless the user has accepted it already."""
    typer.echo(f"{entry.title}\nLicense: {entry.license}\nPlease cite: {entry.citation}\n{entry.published}")
    if not accepted and not sys.stdin.isatty():
        message = f"The license of '{entry.name}' is not accepted. Pass --accept-license."
        raise InputError(message, field="license")
    return accepted or typer.confirm("Do you accept this license?")
