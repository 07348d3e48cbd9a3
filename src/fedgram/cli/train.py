"""The command that trains: fedgram train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from fedgram._util.text import dropped_rows_message, split_names
from fedgram.cli.app import Json, app, print_json
from fedgram.cli.data import DataDir, DataSeed, Larger, Variant
from fedgram.cli.options import Seeds, parse_seeds, split_options
from fedgram.cli.theory import LambdaH, LambdaW
from fedgram.data.problem import Kind, Problem
from fedgram.runs.train_config import PRECISIONS, TrainConfig
from fedgram.theory.penalty import Penalty

PAPER = TrainConfig()

Procedures = Annotated[
    list[str],
    typer.Option(
        "--procedure",
        help="How clients train, in words joined by '+'; several with commas or given one by one. "
        "ordinary; proximal[=RHO]; corrected[=GAMMA]; what is returned: aligned or solved; the bias: private "
        "or offset; centered, full-model, independent; centralized.",
    ),
]


@app.command()
def train(
    dataset: Annotated[
        str, typer.Argument(help="A dataset ('fedgram data list' names them), or a CSV, TSV or Parquet file.")
    ],
    procedure: Procedures = ["ordinary"],  # noqa: B006, typer reads it
    seeds: Seeds = "1",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = PAPER.rounds,
    epochs: Annotated[int, typer.Option(help="Local epochs in a round, E.")] = PAPER.epochs,
    backbone: Annotated[
        str | None, typer.Option(help="The network; default: resmlp for numbers, resnet18 for images.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[
        str, typer.Option(help=f"Of matrix products: {', '.join(PRECISIONS)}.")
    ] = PAPER.precision,
    batch: Annotated[int, typer.Option(help="Rows in a minibatch.")] = PAPER.batch,
    features: Annotated[int, typer.Option(help="Width P of the feature layer.")] = PAPER.features,
    lambda_h: LambdaH = PAPER.penalty.features,
    lambda_w: LambdaW = PAPER.penalty.head,
    learning_rate: Annotated[float, typer.Option(help="At the start of each round.")] = PAPER.learning_rate,
    final_learning_rate: Annotated[
        float, typer.Option(help="At the end of each round.")
    ] = PAPER.final_learning_rate,
    clip: Annotated[float, typer.Option(help="Largest norm of a network's gradient.")] = PAPER.clip,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    keep_models: Annotated[bool, typer.Option(help="Keep the clients' last networks.")] = True,
    data_dir: DataDir = None,
    variant: Variant = "",
    larger: Larger = False,
    data_seed: DataSeed = 0,
    client: Annotated[str | None, typer.Option(help="Own table: column that names the client.")] = None,
    inputs: Annotated[str | None, typer.Option(help="Own table: input columns, with commas.")] = None,
    targets: Annotated[str | None, typer.Option(help="Own table: target columns, with commas.")] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Own table: part of the rows to test with; 0.2 if not given.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Own table: only rows that meet this SQL condition.")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Own table: leave out rows without a client or a number.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option(help=f"Own table: {', '.join(get_args(Kind))}; REAL if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a federation of networks, and hold what it learns beside the prediction.

    All procedures and seeds are trained at once, as one stack of networks. Every round is kept under --out:
    a command that was stopped goes on there when it is given again, and finished runs are not trained again.
    The defaults are the paper's, which want a GPU; this takes a minute without one:

    fedgram train swimmer-mini --procedure ordinary --procedure solved+corrected+offset --seeds 2
    --backbone resmlp-small --features 32 --rounds 3 --epochs 20
    """
    from fedgram.cli.inputs import load_problem
    from fedgram.cli.progress import progress_bar
    from fedgram.data.datasets.dataset import Options
    from fedgram.data.tables.read_rows import Reading
    from fedgram.display import run_tables
    from fedgram.training import train as train_all

    settings = TrainConfig(
        rounds=rounds, epochs=epochs, batch=batch, features=features, penalty=Penalty(lambda_h, lambda_w),
        learning_rate=learning_rate, final_learning_rate=final_learning_rate, clip=clip,
        precision=precision,  # type: ignore[arg-type]  # checked there
    )  # fmt: skip
    reading = Reading(
        client, split_names(inputs or ""), split_names(targets or ""), test_fraction, where,
        drop_missing, kind=kind,  # type: ignore[arg-type]  # checked with the problem
    )  # fmt: skip
    problem = load_problem(dataset, data_dir, Options(data_seed, variant, larger), reading)
    if dropped := problem.provenance.get("rows_left_out"):
        typer.echo(dropped_rows_message(dropped), err=True)
    with progress_bar(kept="finished rounds") as progress:
        runs = train_all(
            problem, backbone or _backbone(problem), split_options(*procedure), parse_seeds(seeds), settings,
            folder=out, device=device, keep_models=keep_models, on_epoch=progress.on_epoch,
            on_warning=progress.log,
        )  # fmt: skip
    if as_json:
        print_json(run_tables.comparison_document(runs))
    else:
        run_tables.print_comparison(runs)
        typer.echo(f"Files: {out}")
    if all(run.account.stopped for run in runs):
        raise typer.Exit(1)


def _backbone(problem: Problem) -> str:
    """The paper's network for this kind of inputs."""
    images = next(iter(problem.train.values())).inputs.ndim > 2
    return "resnet18" if images else "resmlp"
