"""The command `fedgram federate`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedgram._util.errors import InputError
from fedgram.cli.app import app, print_json
from fedgram.cli.options import Json, output_option

SMALL = {"backbone": "wide-deep-64", "features": 32, "rounds": 4, "epochs": 20, "reply-timeout": 600.0}
"""Settings for a few minutes on a CPU; a sites.toml file and the options override them."""


@app.command()
def federate(
    sites: Annotated[
        Path | None, typer.Argument(help="File sites.toml: a table for every site, columns and settings.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Named dataset instead of a file (see 'fedgram data list').")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Split the dataset's rows by target among this many sites.")
    ] = None,
    procedure: Annotated[
        str | None,
        typer.Option(help="Training procedure, as in 'fedgram train'. Default: that of 'fedgram advise'."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help=f"Communication rounds. Default: {SMALL['rounds']}.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help=f"Local epochs per round. Default: {SMALL['epochs']}.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the initial network and the row order.")] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Use Flower's simulation engine (needs Ray), without SuperNodes."),
    ] = False,
    out: Annotated[Path | None, output_option(help="Folder for the run. Default: runs.")] = None,
    as_json: Json = False,
) -> None:
    """Run a Flower federation on this machine and compare it with the prediction.

    The command starts a SuperLink with TLS and one authenticated SuperNode per site, waits until they are
    ready, trains, and stops everything that it started. The same command resumes a stopped run. By default it
    uses the procedure that 'fedgram advise' recommends for noisy data. It trains fewer, longer rounds of a
    small network, so errors may differ from those of 'advise'. The prediction applies to procedures that
    average heads, such as 'proximal':

    fedgram federate --dataset swimmer-mini --procedure proximal --rounds 2 --epochs 5
    """
    if (sites is None) == (dataset is None):
        raise InputError("Pass either a sites.toml file or --dataset.", field="sites")
    if clients is not None and dataset is None:
        raise InputError(
            "--clients applies to --dataset; a sites.toml file names its sites.", field="clients"
        )
    from fedgram.cli.progress import progress_bar
    from fedgram.display import run_tables
    from fedgram.flower.client_state import folder_name
    from fedgram.flower.deployment import federate as run_federation
    from fedgram.flower.sites_file import SitesConfig
    from fedgram.runs.advice import AUTO
    from fedgram.runs.measure import measure
    from fedgram.runs.secure_record import SecureRecord

    found = SitesConfig.read(sites) if sites is not None else SitesConfig.from_dataset(str(dataset), clients)
    config = SitesConfig(SMALL | {"procedure": AUTO} | found.run_config, found.nodes).with_settings(
        procedure=procedure, rounds=rounds, epochs=epochs, seed=seed, out=out and str(out)
    )
    with progress_bar(kept="finished rounds") as progress:
        run = run_federation(config, is_simulation=simulate, on_line=progress.log)
    if isinstance(run, SecureRecord):
        if as_json:
            print_json(run.document)
            return
        typer.echo("\n".join(run.sentences))
    else:
        joining = measure(run).joining
        if as_json:
            document = run_tables.comparison_document([run])
            print_json(document | {"joining": joining.document() if joining else None})
            return
        run_tables.print_comparison([run])
        if joining:
            run_tables.print_joining(joining)
    typer.echo(f"Run: {run.folder}")
    if "dataset" not in config.run_config:  # its columns have no names
        key = next(iter(config.nodes))
        site, folder = key.strip(), config.node_config(key)["folder"]
        name, _, *run_name = run.folder.parts[-4:]  # a site's folders have no backbone
        private = Path(folder, folder_name(site), name, *run_name)
        typer.echo(f"Predict at '{site}': {shlex.join(['fedgram', 'runs', 'predict', str(private)])} new.csv")
