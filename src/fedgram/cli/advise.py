"""The command `fedgram advise`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedgram._util.cluster import check_engine
from fedgram._util.text import join_names
from fedgram.cli import options
from fedgram.cli.app import app, print_json, print_warning
from fedgram.cli.parsing import parse_seeds, parse_units
from fedgram.runs.advice import ALONE, ALONE_LABELS, Advice
from fedgram.runs.train_config import TrainConfig


@app.command()
def advise(
    data: Annotated[str, typer.Argument(help="Named dataset, or a CSV, TSV or Parquet file or folder.")],
    client: options.Client = None,
    inputs: options.InputColumns = None,
    targets: options.Targets = None,
    time: options.Time = None,
    impute: options.Impute = None,
    categories: options.Categories = None,
    test_fraction: options.TestFraction = None,
    where: options.Where = None,
    drop_missing: options.DropMissing = False,
    units: options.Units = None,
    backbone: Annotated[
        str | None, typer.Option(help="Network. Default: chosen for the data on validation rows.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs per round.")] = None,
    seeds: options.Seeds = "1",
    device: options.Device = "auto",
    engine: options.Engine = "local",
    data_dir: options.DataDir = None,
    data_seed: options.DataSeed = 0,
    figure: options.Figure = None,
    show_all: Annotated[bool, options.output_option("--all", help="Show all sites, not only ten.")] = False,
    as_json: options.Json = False,
) -> None:
    """Say for every site whether joining a federation pays, measured on held-out rows.

    Trains five alternatives: alone, a shared head, FedAvg, a moment head with site effects, and pooled.
    Inputs are standardized, text is one-hot encoded, and errors are in the targets' own units.

    fedgram advise beijing-stations
    """
    from fedgram.cli.checks import check_figure
    from fedgram.cli.load_problem import load_site_problem, parse_table_spec
    from fedgram.cli.progress import progress_bar
    from fedgram.display.advice import draw_advice, print_advice, warn_of_few_rows
    from fedgram.display.console import make_console

    spec = parse_table_spec(
        client, inputs, targets, test_fraction, where, drop_missing, time, impute, categories
    )
    numbers = parse_seeds(seeds)
    check_engine(engine)
    check_figure(figure)
    TrainConfig(rounds=1 if rounds is None else rounds, epochs=1 if epochs is None else epochs)  # checks them
    problem = load_site_problem(data, data_dir, spec, data_seed)
    target_units = parse_units(units, problem.target_names or problem.moments.targets)

    if warning := warn_of_few_rows(problem):  # training may take minutes
        print_warning(warning)

    # after the table is read: importing torch takes seconds
    from fedgram.training.advise import advise as compare
    from fedgram.training.site_learning import Plan, count_training_rows

    has_plan = any(given is not None for given in (backbone, rounds, epochs))
    training_rows = count_training_rows(problem)
    plan = Plan.from_backbone(backbone, rounds, epochs, training_rows) if has_plan else None
    with progress_bar() as progress:
        advice = compare(
            problem, plan=plan, seeds=numbers, device=device, engine=engine,
            on_progress=progress.on_fraction,
        )  # fmt: skip
    if figure:
        draw_advice(advice, figure, f"{problem.name} · {problem.kind}")
    if as_json:
        print_json(advice.document())
        return
    print_advice(make_console(), advice, target_units, all_sites=show_all)
    if not advice.has_skill:
        return
    if advice.recommended != ALONE and any(site.verdict == "alone" for site in advice.sites):
        method = f"--procedure {ALONE}" if advice.alone == "network" else ALONE_LABELS[advice.alone]
        typer.echo(f"Sites that do better alone use {method}.")
    if advice.recommended == ALONE and advice.alone != "network":
        fit = ": fit it with scikit-learn's RidgeCV or the like" if advice.alone == "ridge regression" else ""
        typer.echo(
            f"The command below trains networks, but {ALONE_LABELS[advice.alone]} has less error{fit}."
        )
    networks = len(numbers)
    what = "it" if networks == 1 else f"one network (the errors above are those of {networks}, averaged)"
    flags, rows = spec.flags, ""
    if flags.get("--client"):
        flags, rows = {**flags, "--test-fraction": "0"}, " on all rows, including the test rows"
    typer.echo(
        f"Train {what}{rows}, and keep it:\n  " + _train_command(advice, data, flags, data_dir, data_seed)
    )


def _train_command(
    advice: Advice, data: str, table_flags: dict[str, object], data_dir: Path | None, data_seed: int
) -> str:
    """Return the command line that trains the recommended model."""
    config = advice.config
    words = ["fedgram", "train", data, "--procedure", advice.recommended]
    for flag, value in {**table_flags, "--data-dir": data_dir, "--data-seed": data_seed}.items():
        if value is True:
            words.append(flag)
        elif value:
            words += [flag, join_names(value) if isinstance(value, list | tuple) else str(value)]
    if table_flags.get("--client"):
        words.append("--standardize")
    words += [
        "--validation", "0.2", "--backbone", advice.backbone, "--features", str(config.features),
        "--rounds", str(config.rounds), "--epochs", str(config.epochs), "--batch", str(config.batch),
        "--learning-rate", f"{config.learning_rate:g}", "--decay", config.decay,
        "--lambda-h", f"{config.penalty.features:g}", "--lambda-w", f"{config.penalty.head:g}",
    ]  # fmt: skip
    return shlex.join(words)
