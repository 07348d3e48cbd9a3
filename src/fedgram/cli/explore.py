"""Command that writes the interactive explorer: explore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgram.cli.app import app
from fedgram.cli.checks import check_not_overwritten, check_suffix, reject_flags
from fedgram.cli.load_moments import TargetColumns, load_moments
from fedgram.cli.options import (
    Client,
    DropMissing,
    LambdaH,
    LambdaW,
    MinRows,
    Site,
    Targets,
    Weights,
    Where,
    output_option,
)
from fedgram.theory.penalty import Penalty

PAPER = Penalty()


@app.command()
def explore(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Moments files (.json) or tables, as in 'fedgram explain'. Default: examples only.",
            show_default=False,
        ),
    ] = None,
    client: Client = None,
    site: Site = None,
    targets: Targets = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    min_rows: MinRows = 0,
    weights: Weights = None,
    lambda_h: LambdaH = PAPER.features,
    lambda_w: LambdaW = PAPER.head,
    output: Annotated[str, output_option("-o", "--output", help="HTML file to write.")] = "explorer.html",
    open_page: Annotated[bool, output_option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a web page in which you drag clients and see where federated averaging ends, and why.

    The page is one file, needs no network, and contains moments but no rows.
    """
    from fedgram.display.explorer.page import describe_data, write_explorer

    check_suffix(output, "The explorer is a web page; its file", ".html", ".htm")
    described, penalty = None, Penalty(lambda_h, lambda_w)
    columns = TargetColumns(client, site, targets, where, drop_missing, min_rows)
    if not data:
        reject_flags({**columns.flags, "--weights": weights}, "data, but no file was given. Add one")
    else:
        loaded = load_moments(data, columns, weights)
        check_not_overwritten(output, loaded.files)
        name = ", ".join(Path(path).name for path in loaded.paths)
        described = describe_data(loaded.moments, penalty, name)
    size = write_explorer(output, described)
    typer.echo(f"Wrote {output} ({size / 1000:.0f} kB). Open it in a browser.")
    if open_page:
        typer.launch(Path(output).resolve().as_uri())
