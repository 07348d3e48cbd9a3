"""Train first rounds of variants of the network, the optimizer and the data.

    python tools/first_rounds.py --data-dir DATA --minutes 28
    python tools/first_rounds.py --list

After the first averaging, alignment removes a part of the objective. Of all quantities of ordinary training
this part is furthest from the paper's (docs/drift.md). A first round takes seconds on a GPU, so it tells
variants apart at little cost. Finished runs are skipped. Results are written to
results/drift_first_rounds.csv.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor, nn

from fedgram._util.errors import InputError
from fedgram.nets.backbones import ResMLP
from fedgram.paper.launch.collect import make_results
from fedgram.paper.networks.metrics import objective_gap, removed
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.networks.settings import SETTINGS, Source
from fedgram.training import train

TABLES = ("swimmer", "beijing", "hopper", "halfcheetah")
PROCEDURES = ("ordinary", "aligned")  # the same local models, without and with alignment
PAPER = SCALES["paper"]


class Scaled(nn.Sequential):
    """x ↦ factor f(x)."""

    def __init__(self, factor: float, network: nn.Module) -> None:
        super().__init__(network)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """x (B, inputs) -> (B, width)."""
        return self.factor * super().forward(x)


def with_first_activation(inputs: int) -> nn.Module:
    """Build a ResMLP with a PReLU after its input layer."""
    first, *blocks = ResMLP(inputs)
    return nn.Sequential(first, nn.PReLU(), *blocks)


def with_layer_norm(inputs: int) -> nn.Module:
    """Build a ResMLP that normalizes the input of every block."""
    first, *blocks = ResMLP(inputs)
    return nn.Sequential(first, *(layer for block in blocks for layer in (nn.LayerNorm(1024), block)))


def with_kaiming_weights(inputs: int) -> nn.Module:
    """Build a ResMLP with Kaiming-normal weights and zero biases."""
    network = ResMLP(inputs)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, a=0.25)  # the slope with which PReLU starts
            nn.init.zeros_(layer.bias)
    return network


def with_slope_per_channel(inputs: int) -> nn.Module:
    """Build a ResMLP with a PReLU slope for every channel."""
    network = ResMLP(inputs)
    for block in list(network)[1:]:
        block.inner_slope, block.outer_slope = nn.PReLU(1024), nn.PReLU(1024)
    return network


class Variant(NamedTuple):
    """Network for a number of inputs, changed settings of training, and the policy of GENERATED rollouts."""

    network: Callable[[int], nn.Module] = ResMLP
    changed: Mapping[str, Any] = {}
    policy: str = "ppo_stoch"


VARIANTS = {
    "as built in": Variant(),
    "activation after the input layer": Variant(with_first_activation),
    "outputs times 4": Variant(lambda inputs: Scaled(4.0, ResMLP(inputs))),
    "inputs times 3": Variant(lambda inputs: nn.Sequential(Scaled(3.0, nn.Identity()), ResMLP(inputs))),
    "Kaiming-normal weights": Variant(with_kaiming_weights),
    "LayerNorm before each block": Variant(with_layer_norm),
    "PReLU slope per channel": Variant(with_slope_per_channel),
    "clip 0.1": Variant(changed={"clip": 0.1}),
    "clip 1000": Variant(changed={"clip": 1000.0}),
    "learning rate 3e-4": Variant(changed={"learning_rate": 3e-4}),
    "learning rate 3e-3": Variant(changed={"learning_rate": 3e-3}),
    "rollouts of another policy": Variant(policy="tqc_stoch"),
}
"""In the order in which they are trained."""


def main() -> None:
    """Train until the time is over, and write what is finished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=28.0)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of runs and of the table")
    parser.add_argument("--settings", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds, from 0")
    parser.add_argument("--epochs", type=int, default=4000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--list", action="store_true", help="print the variants, and train nothing")
    given = parser.parse_args()
    if given.list:
        print(*VARIANTS, sep="\n")
        return
    end, longest = time.monotonic() + 60 * given.minutes, 0.0
    for name, setting in product(VARIANTS, given.settings.split(",")):
        begin = time.monotonic()
        if begin + longest > end:
            print("The time is over. Run the same command again to continue.")
            return
        try:
            rows = pd.DataFrame(measure_variant(name, setting, given))
        except InputError as error:
            print(f"{name}, {setting}: {error}", flush=True)
            continue
        save(rows, given.out / "drift_first_rounds.csv")
        print(rows.to_string(index=False, header=False), flush=True)
        longest = max(longest, time.monotonic() - begin)


def measure_variant(name: str, setting: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train a variant in a setting, and yield a row for each seed."""
    variant = VARIANTS[name]
    problem = PAPER.problem(find_source(setting, variant.policy, given.data_dir), given.data_dir, False)
    network = partial(variant.network, SETTINGS[setting].inputs[0])
    config = replace(PAPER.settings(given.epochs, 1), **variant.changed)
    runs = train(
        problem, network, PROCEDURES, range(given.seeds), config,
        folder=given.out / "first_rounds" / f"E{given.epochs}" / name.replace(" ", "-"), device=given.device,
        backbone_name="resmlp", keep_models=False,
    )  # fmt: skip
    results = [make_results(run, [setting], PAPER, False)[0] for run in runs]
    for raw, aligned in zip(results[: given.seeds], results[given.seeds :], strict=True):
        yield {
            "variant": name, "setting": setting, "data": raw.kind, "epochs": raw.epochs, "seed": raw.seed,
            "removed": f"{removed(raw, aligned):.2g}", "delta": f"{raw.delta[0]:.2g}",
            "objective_gap": f"{objective_gap(raw):.2g}", "device": raw.hardware,
        }  # fmt: skip


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


def save(rows: pd.DataFrame, path: Path) -> None:
    """Replace the rows of the same runs in a table, or append them."""
    key = ["variant", "setting", "epochs", "seed"]
    known = pd.read_csv(path, dtype=str) if path.exists() else rows[:0]
    both = pd.concat([known, rows.astype(str)]).drop_duplicates(key, keep="last")
    path.parent.mkdir(parents=True, exist_ok=True)
    both.to_csv(path, index=False)


if __name__ == "__main__":
    main()
