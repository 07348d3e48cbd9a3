"""Train variants of the network, the optimizer and the data.

    python tools/drift_variants.py --data-dir DATA --minutes 28
    python tools/drift_variants.py --data-dir DATA --rounds 8 --variants "head times 0.1" --settings hopper
    python tools/drift_variants.py --data-dir DATA --procedures ordinary,proximal+corrected
    python tools/drift_variants.py --list

A first round takes seconds on a GPU, and two of its quantities tell networks apart (docs/drift.md): the part
of the objective that alignment removes after ordinary training, and the error after corrected proximal
training. Aligned training is not run: the objective after alignment is known from the targets
(`aligned_objective`). Results are written to results/drift_variants.csv, and runs that are in it are skipped.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation import clients
from fedgram.nets.backbones import PreActivatedBlock, ResMLP
from fedgram.nets.model import Model, draw, hash_key
from fedgram.paper.launch.collect import protocol_folder
from fedgram.paper.networks.mismatch import aligned_objective
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import SETTINGS, Source
from fedgram.runs import StoredRun
from fedgram.runs.measure import measure
from fedgram.training import train

TABLES = ("swimmer", "beijing", "hopper", "halfcheetah")
PAPER = SCALES["paper"]
KEY = ("variant", "setting", "procedure", "epochs", "seed", "round")


WIDTH = 1024


class Scaled(nn.Sequential):
    """x ↦ factor f(x)."""

    def __init__(self, factor: float, network: nn.Module) -> None:
        super().__init__(network)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """x (B, inputs) -> (B, width)."""
        output: Tensor = super().forward(x)
        return self.factor * output


class Residual(nn.Sequential):
    """h ↦ h + f(h)."""

    def forward(self, h: Tensor) -> Tensor:
        """h (B, width) -> (B, width)."""
        change: Tensor = super().forward(h)
        return h + change


def linear() -> nn.Module:
    """Build a hidden layer."""
    return nn.Linear(WIDTH, WIDTH)


def with_blocks(block: Callable[[], nn.Module], inputs: int) -> nn.Module:
    """Build an input layer with a PReLU, and three blocks."""
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.PReLU(), *(block() for _ in range(3)))


def plain_sum() -> nn.Module:
    """h ↦ h + PReLU(Linear(PReLU(Linear(h))))."""
    return Residual(linear(), nn.PReLU(), linear(), nn.PReLU())


def single_layer() -> nn.Module:
    """h ↦ PReLU(h + Linear(h))."""
    return nn.Sequential(Residual(linear()), nn.PReLU())


def normalized(norm: Callable[[int], nn.Module]) -> nn.Module:
    """h ↦ PReLU(h + norm(Linear(PReLU(norm(Linear(h))))))."""
    inner = (linear(), norm(WIDTH), nn.PReLU(), linear(), norm(WIDTH))
    return nn.Sequential(Residual(*inner), nn.PReLU())


def pre_normalized(norm: Callable[[int], nn.Module], inputs: int) -> nn.Module:
    """Build three blocks h ↦ h + Linear(PReLU(Linear(norm(h)))), and normalize their output."""
    blocks = (Residual(norm(WIDTH), linear(), nn.PReLU(), linear()) for _ in range(3))
    return nn.Sequential(nn.Linear(inputs, WIDTH), *blocks, norm(WIDTH), nn.PReLU())


def with_first_activation(inputs: int) -> nn.Module:
    """Build a ResMLP with a PReLU after its input layer."""
    first, *blocks = ResMLP(inputs)
    return nn.Sequential(first, nn.PReLU(), *blocks)


def with_layer_norm(inputs: int) -> nn.Module:
    """Build a ResMLP that normalizes the input of every block."""
    first, *blocks = ResMLP(inputs)
    return nn.Sequential(first, *(layer for block in blocks for layer in (nn.LayerNorm(WIDTH), block)))


def with_slope_per_channel(inputs: int) -> nn.Module:
    """Build a ResMLP with a PReLU slope for every channel."""
    network = ResMLP(inputs)
    for block in list(network)[1:]:
        block.inner_slope, block.outer_slope = nn.PReLU(WIDTH), nn.PReLU(WIDTH)
    return network


def scale(layer: str, factor: float, model: Model) -> None:
    """Multiply the initial weights of a layer."""
    model.get_submodule(layer).weight.mul_(factor)


def reset(initialize: Callable[[Tensor], object], layers: Sequence[str], model: Model) -> None:
    """Draw other initial weights, and zero biases, in parts of a model."""
    for layer in (each for name in layers for each in model.get_submodule(name).modules()):
        if isinstance(layer, nn.Linear):
            initialize(layer.weight)
            nn.init.zeros_(layer.bias)


class Variant(NamedTuple):
    """Network for a number of inputs, change of its initial weights, changed settings of training, and data.

    policy: of GENERATED rollouts; own_units: whether inputs are not standardized.
    """

    network: Callable[[int], nn.Module] = ResMLP
    change: Callable[[Model], None] = lambda model: None
    settings: Mapping[str, Any] = {}
    policy: str = "ppo_stoch"
    own_units: bool = False


kaiming_normal = partial(nn.init.kaiming_normal_, a=0.25)  # the slope with which PReLU starts
BACKBONE, ALL_BUT_HEAD = ("backbone",), ("backbone", "feature")
pre_activated = partial(with_blocks, partial(PreActivatedBlock, WIDTH))
VARIANTS = {
    "as built in": Variant(),
    "Kaiming-normal weights": Variant(change=partial(reset, kaiming_normal, BACKBONE)),
    "Kaiming-normal weights and activation after the input layer": Variant(
        with_first_activation, partial(reset, kaiming_normal, BACKBONE)
    ),
    "Kaiming-normal weights and activation before each layer": Variant(
        pre_activated, partial(reset, kaiming_normal, BACKBONE)
    ),
    "Kaiming-normal weights and no activation after the sum": Variant(
        partial(with_blocks, plain_sum), partial(reset, kaiming_normal, BACKBONE)
    ),
    "Kaiming-normal weights and PReLU slope per channel": Variant(
        with_slope_per_channel, partial(reset, kaiming_normal, BACKBONE)
    ),
    "PReLU slope per channel": Variant(with_slope_per_channel),
    "inputs times 3": Variant(lambda inputs: nn.Sequential(Scaled(3.0, nn.Identity()), ResMLP(inputs))),
    "clip 0.1": Variant(settings={"clip": 0.1}),
    "clip 1000": Variant(settings={"clip": 1000.0}),
    "Kaiming-normal weights up to the features": Variant(change=partial(reset, kaiming_normal, ALL_BUT_HEAD)),
    "feature layer times 20": Variant(change=partial(scale, "feature", 20.0)),
    "feature layer times 5": Variant(change=partial(scale, "feature", 5.0)),
    "Xavier-uniform weights up to the features": Variant(
        change=partial(reset, nn.init.xavier_uniform_, ALL_BUT_HEAD)
    ),
    "Xavier-normal weights": Variant(change=partial(reset, nn.init.xavier_normal_, BACKBONE)),
    "Xavier-normal weights and activation before each layer": Variant(
        pre_activated, partial(reset, nn.init.xavier_normal_, BACKBONE)
    ),
    "LayerNorm before each block": Variant(with_layer_norm),
    "BatchNorm after each layer": Variant(partial(with_blocks, partial(normalized, nn.BatchNorm1d))),
    "LayerNorm after each layer": Variant(partial(with_blocks, partial(normalized, nn.LayerNorm))),
    "BatchNorm before each block and last": Variant(partial(pre_normalized, nn.BatchNorm1d)),
    "LayerNorm before each block and last": Variant(partial(pre_normalized, nn.LayerNorm)),
    "one layer per block": Variant(partial(with_blocks, single_layer)),
    "no activation after the sum": Variant(partial(with_blocks, plain_sum)),
    "activation before each layer": Variant(pre_activated),
    "activation after the input layer": Variant(with_first_activation),
    "outputs times 4": Variant(lambda inputs: Scaled(4.0, ResMLP(inputs))),
    "inputs in their own units": Variant(own_units=True),
    "head times 0.1": Variant(change=partial(scale, "head", 0.1)),
    "head times 0.1 and activation after the input layer": Variant(
        with_first_activation, partial(scale, "head", 0.1)
    ),
    "head times 0.01": Variant(change=partial(scale, "head", 0.01)),
    "head times 3": Variant(change=partial(scale, "head", 3.0)),
    "learning rate 3e-4": Variant(settings={"learning_rate": 3e-4}),
    "learning rate 3e-3": Variant(settings={"learning_rate": 3e-3}),
    "rollouts of another policy": Variant(policy="tqc_stoch"),
}
"""In the order in which they are trained."""


def main() -> None:
    """Train until the time is over, and write what is finished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=28.0)
    parser.add_argument("--data-dir", type=Path, help="needed unless --list is given")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of runs and of the table")
    parser.add_argument("--settings", default=",".join(TABLES))
    parser.add_argument("--variants", default=",".join(list(VARIANTS)[1:]))
    parser.add_argument("--procedures", default="ordinary", help="ordinary, proximal+corrected or both")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--epochs", default="4000", help="one or several, as 400,1000")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--list", action="store_true", help="print the variants, and train nothing")
    given = parser.parse_args()
    if given.list:
        print(*VARIANTS, sep="\n")
        return
    if given.data_dir is None:
        parser.error("--data-dir is missing")
    if unknown := set(given.variants.split(",")) - set(VARIANTS):
        parser.error(f"unknown variant: {', '.join(sorted(unknown))}; --list prints all")
    end, longest = time.monotonic() + 60 * given.minutes, 0.0
    table = given.out / "drift_variants.csv"
    chosen = product(given.variants.split(","), map(int, given.epochs.split(",")), given.settings.split(","))
    for name, epochs, setting in chosen:
        seeds = find_missing(given, name, setting, epochs, table)
        if not seeds:
            continue
        begin = time.monotonic()
        if begin + longest > end:
            print("The time is over. Run the same command again to continue.")
            return
        try:
            rows = list(measure_variant(name, setting, epochs, seeds, given))
        except InputError as error:
            print(f"{name}, {setting}, E = {epochs}: {error}", flush=True)
            continue
        save(rows, table)
        for row in rows:
            print(*row.values(), sep="  ", flush=True)
        longest = max(longest, time.monotonic() - begin)


def measure_variant(
    name: str, setting: str, epochs: int, seeds: Sequence[int], given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Train a variant in a setting, and yield a row for each seed and round."""
    variant = VARIANTS[name]
    problem = PAPER.problem(find_source(setting, variant.policy, given.data_dir), given.data_dir, False)
    if variant.own_units:
        problem = restore_units(problem)
    network = partial(variant.network, SETTINGS[setting].inputs[0])
    config = replace(PAPER.settings(epochs, given.rounds), **variant.settings)
    protocol = protocol_folder(epochs, given.rounds, False)
    with changed_models(variant.change):
        runs = train(
            problem, network, given.procedures.split(","), seeds, config,
            folder=given.out / "drift_variants" / protocol / name.replace(" ", "-"),
            device=given.device, backbone_name="resmlp", keep_models=False,
        )  # fmt: skip
    for run in runs:
        yield from describe_rounds(run, name, setting)


def describe_rounds(run: StoredRun, name: str, setting: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each round of a run; errors are those to the procedure's target."""
    found, setup, rounds = measure(run), run.setup, run.rounds()
    target = found.expected.target
    weights, broadcast = found.prediction.moments.client_weights, run.initial[0].astype(float)
    for t, round in enumerate(rounds):
        row = {
            "variant": name, "setting": setting, "procedure": setup.procedure.name, "data": setup.data.kind,
            "epochs": setup.settings.epochs, "seed": setup.seed, "round": t + 1, "removed": "",
            "error": f"{found.error[target][t + 1]:.2g}",
            "direction": f"{found.direction_error[target][t + 1]:.2g}",
            "trajectory": f"{found.trajectory_error[t + 1]:.2g}", "delta": f"{found.delta[t]:.2g}",
            "objective_gap": "", "device": run.account.hardware,
        }  # fmt: skip
        if not setup.procedure.corrected:
            aligned = aligned_objective(found.prediction, broadcast)
            row["removed"] = f"{1 - aligned / (weights @ round.shared_objective):.2g}"
            row["objective_gap"] = f"{found.median_objective_gaps[t]:.2g}"
        broadcast = round.head.astype(float)
        yield row


@contextmanager
def changed_models(change: Callable[[Model], None]) -> Iterator[None]:
    """Change the initial models of a federation; clients that share a backbone still share it."""

    def draw_changed(*given: Any) -> Model:
        *_, seed, client = given
        model = draw(*given)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(hash_key("change", seed, client))
            change(model)
        return model

    with mock.patch.object(clients, "draw", draw_changed):
        yield


def restore_units(problem: Problem) -> Problem:
    """Undo the standardization of inputs."""
    if "scale" not in problem.provenance:
        raise InputError("Its inputs have their own units already.")
    names = list(problem.provenance["scale"])[len(problem.target_names) :]
    mean, scale = ([problem.provenance[key][name] for name in names] for key in ("mean", "scale"))

    def restore(split: Split) -> Split:
        return Split((split.inputs * np.array(scale) + np.array(mean)).astype(np.float32), split.targets)

    train, test = (
        {name: restore(each) for name, each in part.items()} for part in (problem.train, problem.test)
    )
    return replace(problem, train=train, test=test)


def find_source(setting: str, policy: str, data_dir: Path) -> Source:
    """Find the paper's dataset, or GENERATED rollouts of a policy."""
    sources = [replace(each, variant=policy if each.variant else "") for each in SETTINGS[setting].sources]
    if policy != Variant().policy:
        sources = [each for each in sources if each.variant]
    reasons = {each: each.missing(data_dir, False) for each in sources}
    for source, reason in reasons.items():
        if reason is None:
            return source
    raise InputError(" ".join(filter(None, reasons.values())) or "It has no other rollouts.")


def read_known(path: Path) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Read the rows of a table by the values of KEY."""
    rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
    return {tuple(row[key] for key in KEY): row for row in rows}


def find_missing(given: argparse.Namespace, name: str, setting: str, epochs: int, path: Path) -> list[int]:
    """Return the seeds of which a procedure's last round is not in a table."""
    known, procedures = read_known(path), given.procedures.split(",")

    def key(seed: str, procedure: str) -> tuple[str, ...]:
        return (name, setting, procedure, str(epochs), seed, str(given.rounds))

    return [
        int(seed)
        for seed in given.seeds.split(",")
        if not all(key(seed, procedure) in known for procedure in procedures)
    ]


def save(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Replace the rows of the same runs in a table, or append them."""
    merged = read_known(path) | {tuple(str(row[key]) for key in KEY): row for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged.values())


if __name__ == "__main__":
    main()
