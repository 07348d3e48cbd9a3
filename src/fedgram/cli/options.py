"""Typer options and arguments that several commands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

# Options in one panel of the help.
table_option = partial(typer.Option, rich_help_panel="Data (tables)")
dataset_option = partial(typer.Option, rich_help_panel="Data (named datasets)")
output_option = partial(typer.Option, rich_help_panel="Output")

Data = Annotated[
    list[str],
    typer.Argument(
        help="Moments files (.json), tables (CSV, TSV, Parquet; also .gz), folders, quoted globs, or the "
        "name of a dataset.",
        show_default=False,
    ),
]
Client = Annotated[str | None, table_option(help="Column with the client (site) of each row.")]
Site = Annotated[str | None, table_option(help="Client (site) of all rows, if no column has it.")]
Targets = Annotated[
    str | None, table_option(help="Target columns, separated by commas. Quote a name that contains a comma.")
]
Where = Annotated[str | None, table_option(help="Keep only rows that match this SQL condition.")]
DropMissing = Annotated[
    bool,
    table_option("--drop-missing", help="Drop rows with a missing client, target or (unless imputed) input."),
]
MinRows = Annotated[int, table_option("--min-rows", help="Leave out clients with fewer complete rows.")]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Client weights: 'equal', numbers in client order, or NAME=NUMBER pairs. Default: row counts."
    ),
]
Units = Annotated[
    str | None,
    typer.Option(help="Units of the targets: one for all, one per target, or NAME=UNIT pairs."),
]
InputColumns = Annotated[str | None, table_option("--inputs", help="Input columns, separated by commas.")]
TestFraction = Annotated[
    float | None, table_option(help="Fraction of rows to keep for testing. Default: 0.2.")
]
Time = Annotated[
    str | None, table_option(help="Column with times: test on the latest rows instead of random ones.")
]
Impute = Annotated[
    str | None, table_option(help="Fill missing inputs: 'median'. Default: refuse missing inputs.")
]
Categories = Annotated[
    str | None,
    table_option(help="Numeric inputs that are codes, separated by commas: encoded one-hot, like text."),
]

DataDir = Annotated[
    Path | None,
    dataset_option(help="Folder with the dataset files. Default: $FEDGRAM_DATA, else the cache folder."),
]
Variant = Annotated[str, dataset_option(help="Variant of the files, if the dataset has several.")]
Larger = Annotated[bool, dataset_option("--larger", help="Use the paper's larger training set.")]
DataSeed = Annotated[int, typer.Option(help="Seed for random choices about the data.")]

LambdaH = Annotated[float, typer.Option("--lambda-h", help="Feature penalty lambda_H.")]
LambdaW = Annotated[float, typer.Option("--lambda-w", help="Head penalty lambda_W.")]
Initial = Annotated[
    str | None, typer.Option(help="JSON file with the initial Gram matrix. Default: identity.")
]
Seeds = Annotated[
    str, typer.Option(help="Number of seeds ('5' means 0 to 4), or a list ('0,3'; '3,' is 3 alone).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Engine = Annotated[str, typer.Option(help="local, or ray for all GPUs of a Ray cluster.")]

Figure = Annotated[str | None, output_option(help="Write a figure to this .png, .svg or .pdf file.")]
AllClients = Annotated[bool, output_option("--all", help="Show all clients (sites), not only ten.")]
Json = Annotated[bool, output_option("--json", help="Print JSON in full double precision.")]
