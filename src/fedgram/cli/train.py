"""The command `fedgram train`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

import typer

from fedgram._util.cluster import check_engine
from fedgram._util.text import dropped_rows_message
from fedgram.cli import options
from fedgram.cli.app import app, print_json
from fedgram.cli.parsing import parse_seeds, split_values
from fedgram.data.problem import Kind, Problem
from fedgram.runs import StoredRun
from fedgram.runs.procedure import Procedure
from fedgram.runs.train_config import PRECISIONS, TrainConfig
from fedgram.theory.penalty import Penalty

PAPER = TrainConfig()

network_option = partial(typer.Option, rich_help_panel="Network")
optimizer_option = partial(typer.Option, rich_help_panel="Optimizer")

Procedures = Annotated[
    list[str],
    typer.Option(
        "--procedure",
        help="Training procedure: words joined by '+'. Repeat the option or separate procedures by commas. "
        "Loss: ordinary, proximal[=RHO], corrected[=GAMMA]. Returned head: aligned, solved. Bias: private, "
        "offset. Other: centered, full-model, independent, centralized, local. With full-model: "
        "moment-head[=ROUNDS], site-effects, blended.",
    ),
]


@app.command()
def train(
    dataset: Annotated[
        str, typer.Argument(help="Named dataset (see 'fedgram data list'), or a CSV, TSV or Parquet file.")
    ],
    procedure: Procedures = ["ordinary"],  # noqa: B006, Typer does not mutate it
    seeds: options.Seeds = "1",
    rounds: Annotated[int, typer.Option(help="Communication rounds.")] = PAPER.rounds,
    epochs: Annotated[int, typer.Option(help="Local epochs per round.")] = PAPER.epochs,
    measure_every: Annotated[
        int, typer.Option(help="Measure objectives and errors only after every k-th round and the last.")
    ] = PAPER.measure_every,
    lambda_h: options.LambdaH = PAPER.penalty.features,
    lambda_w: options.LambdaW = PAPER.penalty.head,
    device: options.Device = "auto",
    engine: options.Engine = "local",
    backbone: Annotated[
        str | None,
        network_option(help="Network. Default: resmlp for vectors, resnet18 for images."),
    ] = None,
    features: Annotated[int, network_option(help="Width of the feature layer.")] = PAPER.features,
    precision: Annotated[
        str, network_option(help=f"Precision of matrix products: {', '.join(PRECISIONS)}.")
    ] = PAPER.precision,
    batch: Annotated[int, optimizer_option(help="Rows per minibatch.")] = PAPER.batch,
    learning_rate: Annotated[
        float, optimizer_option(help="Learning rate at the start of each round.")
    ] = PAPER.learning_rate,
    final_learning_rate: Annotated[
        float, optimizer_option(help="Learning rate at the end of each round.")
    ] = PAPER.final_learning_rate,
    decay: Annotated[
        str, optimizer_option(help="Decay the learning rate within each 'round' or over the whole 'run'.")
    ] = PAPER.decay,
    clip: Annotated[float, optimizer_option(help="Maximum gradient norm of a network.")] = PAPER.clip,
    data_dir: options.DataDir = None,
    variant: options.Variant = "",
    larger: options.Larger = False,
    data_seed: options.DataSeed = 0,
    client: options.Client = None,
    inputs: options.InputColumns = None,
    targets: options.Targets = None,
    test_fraction: options.TestFraction = None,
    standardize: Annotated[
        bool,
        options.table_option(
            "--standardize",
            help="Standardize numbers with pooled moments, encode text one-hot; predictions undo it.",
        ),
    ] = False,
    time: options.Time = None,
    impute: options.Impute = None,
    categories: options.Categories = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Fraction of training rows held out to choose round and strengths. Default: none, or 0.2 "
            "with moment-head or blended."
        ),
    ] = None,
    where: options.Where = None,
    drop_missing: options.DropMissing = False,
    kind: Annotated[
        str | None, options.table_option(help=f"Kind of data: {', '.join(get_args(Kind))}. Default: REAL.")
    ] = None,
    out: Annotated[Path, options.output_option(help="Folder for the runs.")] = Path("runs"),
    keep_models: Annotated[bool, options.output_option(help="Save the clients' final networks.")] = True,
    show_all: options.AllClients = False,
    as_json: options.Json = False,
) -> None:
    """Train networks by federated averaging and compare them with the prediction.

    All procedures and seeds train together. Each finished round is saved in --out: the same command resumes a
    stopped run and skips finished runs. The defaults are the paper's and need a GPU. This example takes about
    a minute on a CPU:

    fedgram train swimmer-mini --procedure ordinary --procedure proximal --seeds 2
    --backbone resmlp-small --features 32 --rounds 3 --epochs 20
    """
    from fedgram.cli.load_problem import load_problem, parse_table_spec
    from fedgram.cli.progress import progress_bar
    from fedgram.data.datasets.dataset import Options
    from fedgram.data.holdout import VALIDATION_FRACTION, check_validation_fraction
    from fedgram.display import run_tables
    from fedgram.display.console import make_console
    from fedgram.display.training_table import print_training

    config = TrainConfig(
        rounds=rounds, epochs=epochs, batch=batch, features=features, penalty=Penalty(lambda_h, lambda_w),
        learning_rate=learning_rate, final_learning_rate=final_learning_rate, clip=clip,
        measure_every=measure_every, precision=precision,  # type: ignore[arg-type]  # TrainConfig checks them
        decay=decay,  # type: ignore[arg-type]
    )  # fmt: skip
    table = parse_table_spec(
        client, inputs, targets, test_fraction, where, drop_missing, time, impute, categories, kind
    )
    procedures, numbers = split_values(*procedure), parse_seeds(seeds)
    check_engine(engine)
    needs_validation = any(Procedure.parse(each).needs_validation for each in procedures)
    fraction = validation if validation is not None else VALIDATION_FRACTION if needs_validation else None
    if fraction is not None:
        check_validation_fraction(fraction)
    problem = load_problem(
        dataset, data_dir, Options(data_seed, variant, larger), table, standardize=standardize,
        validation=fraction,
    )  # fmt: skip
    if dropped := problem.provenance.get("rows_left_out"):
        typer.echo(dropped_rows_message(dropped), err=True)

    from fedgram.training.engines import TRAINERS  # after the table is read: importing torch takes seconds

    with progress_bar(kept="finished rounds") as progress:
        runs = TRAINERS[engine](
            problem, backbone or _default_backbone(problem), procedures, numbers, config,
            folder=out, device=device, keep_models=keep_models, on_epoch=progress.on_epoch,
            on_warning=progress.log,
        )  # fmt: skip
    if as_json:
        print_json(run_tables.comparison_document(runs))
    else:
        print_training(make_console(), runs, all_sites=show_all)
        typer.echo(f"Files: {out}. {_suggest_next(runs, out, client)}")
    if all(run.account.stopped for run in runs):
        raise typer.Exit(1)


def _suggest_next(runs: Sequence[StoredRun], out: Path, client: str | None) -> str:
    """Say which command comes next: compare with the prediction, or predict if there is none."""
    if any(not run.setup.without_limit for run in runs) or not runs[0].has_model:
        return f"Compare heads with the prediction: fedgram runs compare {out}"
    column = f" --client {shlex.quote(client)}" if client else ""
    return f"Predict other rows: fedgram runs predict {shlex.quote(str(runs[0].folder))} TABLE{column}"


def _default_backbone(problem: Problem) -> str:
    has_images = next(iter(problem.train.values())).inputs.ndim > 2
    return "resnet18" if has_images else "resmlp"
