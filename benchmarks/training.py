"""Time training steps: fedgram's stack and a plain PyTorch loop, on one device in one run.

    python benchmarks/training.py [--device cuda] [--json FILE] [--convolutions] [--many-rounds]

On a GPU: the paper's ResMLP (17 inputs, C = 6, batch 256) and ResNet-18 (64 x 64 x 3, C = 3, batch 256) for
4 clients x 1, 5 and 20 runs. On a CPU: 4 clients x 4 runs of the small ResMLP. Data are GENERATED noise; a
step includes drawing the order, selecting rows, clipping and AdamW. Times are means over whole epochs after
a warm-up. The plain loop trains one model with torch.optim.AdamW (its default implementation),
clip_grad_norm_ and data on the device; its time per model does not depend on how many models there are.

The floor of a GPU step counts its operations, at the rate of a large product in the same precision, and bytes
at the speed of a large copy: gradients (read twice), parameters and moments (there and back), and outputs of
layers with their gradients (five times). Rates are measured in the same run. Without overlap no version can
be faster; products of many small matrices reach less.

With --convolutions: ResNet-18 in half precision with the fused kernels, and one model at a time with cuDNN.

With --many-rounds [ROUNDS]: rounds of one epoch, by default 60, for 12 clients (1,800 training and 1,000 test
rows each, GENERATED) x 6 procedures with the paper's ResMLP, on a CPU with the small one. Total seconds, and
the time between rounds: returns, averages and measurements, which are made after every round, every tenth, or
none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import fedgram.nets.stack
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.federation import Federation
from fedgram.nets.batches import Batches
from fedgram.nets.cuda import autocast, storage_dtype, use_precision
from fedgram.nets.fit import Fit
from fedgram.nets.model import Model, draw, to_model_input
from fedgram.nets.objective import Terms
from fedgram.nets.stack import ModelStack
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import Precision, TrainConfig
from training_floor import floor

CLIENTS, ROWS = 4, 1024
PROCEDURES = {
    "the paper's": (
        "ordinary", "proximal", "aligned", "corrected", "proximal+corrected", "aligned+corrected",
    ),
    "with solved returns, offsets and full models": (
        "ordinary", "proximal", "aligned", "corrected+offset", "solved+corrected+offset", "full-model",
    ),
}  # fmt: skip
MEASURED = {"every round": 1, "every tenth round": 10, "no round": None}
HEADINGS = ("backbone", "precision", "models", "plain, one model", "stack", "per model", "times faster")
HEADINGS += ("floor", "share of floor", "peak GiB")


@dataclass(frozen=True)
class Case:
    """A backbone, the shape of its inputs and its number of targets, in a precision."""

    backbone: str
    shape: tuple[int, ...]
    targets: int
    precision: Precision
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step: of one model in a plain loop, and of a whole stack."""

    backbone: str
    precision: str
    models: int
    plain_ms: float
    stack_ms: float
    floor_ms: float
    peak_gib: float

    @property
    def ratio(self) -> float:
        """How many times faster the stack is."""
        return self.models * self.plain_ms / self.stack_ms


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of rounds of one epoch, and milliseconds of a round: in training, and between rounds."""

    procedures: str
    measured: str
    setup_s: float
    rounds_s: float
    training_ms: float
    between_ms: float

    @property
    def share(self) -> float:
        """Part of the time that is not local training."""
        return self.between_ms / (self.training_ms + self.between_ms)


GPU = (
    Case("resmlp", (17,), 6, "tf32", (1, 5, 20)),
    Case("resmlp", (17,), 6, "fp32", (20,)),
    Case("resmlp", (17,), 6, "fp16", (1, 5, 20)),
    Case("resmlp", (17,), 6, "bf16", (20,)),
    Case("resnet18", (64, 64, 3), 3, "tf32", (1, 5, 20)),
    Case("resnet18", (64, 64, 3), 3, "fp16", (1, 5, 20)),
    Case("resnet18", (64, 64, 3), 3, "bf16", (1, 5, 20)),
)
CPU = (Case("resmlp-small", (17,), 6, "fp32", (4,)),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose backbone and precision contain this")
    parser.add_argument("--convolutions", action="store_true", help="compare kernels with cuDNN")
    parser.add_argument("--many-rounds", type=int, nargs="?", const=60, metavar="ROUNDS")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, console = torch.device(arguments.device), Console(width=110)
    if arguments.convolutions:
        compare_convolutions(device)
        return
    if arguments.many_rounds:
        times = []
        for procedures, measured_rounds in product(PROCEDURES, MEASURED):
            times.append(time_rounds(device, arguments.many_rounds, procedures, measured_rounds))
            print(times[-1], f"{times[-1].share:.0%} between rounds", flush=True)
        write_json(arguments.json, times)
        return
    cases = [
        c for c in (GPU if device.type == "cuda" else CPU) if arguments.only in f"{c.backbone} {c.precision}"
    ]
    rows = []
    for case in cases:
        plain = plain_step(case, device)
        for runs in case.runs:
            rows.append(measured(case, runs, plain, device))
            print(asdict(rows[-1]), file=sys.stderr, flush=True)
    console.print(table(rows))
    write_json(arguments.json, rows)


def write_json(path: Path | None, rows: Sequence[Row | RoundTimes]) -> None:
    if path:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def compare_convolutions(device: torch.device) -> None:
    case = next(case for case in GPU if case.backbone == "resnet18" and case.precision == "fp16")
    for way, is_fused in (("fused", True), ("one model at a time", False)):
        with patch.object(fedgram.nets.stack, "has_fused_layers", lambda device, is_fused=is_fused: is_fused):
            each = stacked_step(case, 2, device) / (2 * CLIENTS)
            print(f"{2 * CLIENTS} {case.backbone}, {way}: {each:.2f} ms per model and step", flush=True)


def time_rounds(device: torch.device, rounds: int, procedures: str, measured: str) -> RoundTimes:
    """Time rounds of one epoch: all of them, and what is not local training.

    On a CPU these are seconds of the process, which do not depend on what else the machine does.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    backbone, width = ("resmlp", 512) if device.type == "cuda" else ("resmlp-small", 64)
    config = TrainConfig(rounds=rounds, epochs=1, features=width, measure_every=MEASURED[measured] or 1)
    trained, begin = 0.0, clock()
    runs = [Run(Procedure.parse(words), 0) for words in PROCEDURES[procedures]]
    federation = Federation(noisy_sites(), backbone, runs, config, device)
    whole = federation.clients.fit.round

    def timed_round(*arguments: Any) -> torch.Tensor:
        nonlocal trained
        wait(device)
        start = clock()
        losses = whole(*arguments)
        wait(device)
        trained += clock() - start
        return losses

    setup = clock() - begin
    with patch.object(federation.clients.fit, "round", timed_round):
        for _ in federation.rounds(measured=MEASURED[measured] is not None):
            pass
        wait(device)
    took = clock() - begin - setup
    between, training = 1e3 * (took - trained) / rounds, 1e3 * trained / rounds
    return RoundTimes(procedures, measured, setup, took, training, between)


def noisy_sites() -> Problem:
    """Draw twelve sites with 8 inputs and 2 noisy targets."""
    rng = np.random.default_rng(0)
    slope = rng.standard_normal((8, 2))

    def draw_rows(site: int, count: int) -> Split:
        inputs = rng.standard_normal((count, 8))
        noise = 0.5 * rng.standard_normal((count, 2))
        return Split(inputs.astype(np.float32), np.tanh(inputs @ slope) + 0.1 * site + noise)

    train, test = ({f"site {m}": draw_rows(m, count) for m in range(12)} for count in (1_800, 1_000))
    return Problem("noisy sites", "GENERATED", train, test)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measured(case: Case, runs: int, plain: float, device: torch.device) -> Row:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    stacked = stacked_step(case, runs, device)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    least = floor(
        model(case),
        to_model_input(data(case, device)[0][:256], torch.float32),
        CLIENTS * runs,
        case.precision,
    )
    return Row(case.backbone, case.precision, CLIENTS * runs, plain, stacked, least, peak)


def data(case: Case, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if len(case.shape) == 1:
        inputs = torch.randn(ROWS, *case.shape, generator=generator)
    else:
        inputs = torch.randint(0, 256, (ROWS, *case.shape), generator=generator, dtype=torch.uint8)
    return inputs.to(device), torch.randn(ROWS, case.targets, generator=generator).to(device)


def model(case: Case) -> Model:
    inputs = to_model_input(data(case, torch.device("cpu"))[0][:2], torch.float32)
    return draw(case.backbone, inputs, features(case), case.targets, 0, None)


def features(case: Case) -> int:
    return 64 if case.backbone.endswith("small") else 512


def stacked_step(case: Case, runs: int, device: torch.device) -> float:
    """Milliseconds of a step of CLIENTS x runs models."""
    count, dtype = CLIENTS * runs, storage_dtype(case.precision)
    one = model(case)
    stack = ModelStack.from_models([one], device, dtype)
    stack.parameters = {
        name: value.repeat(count, *[1] * (value.ndim - 1)) for name, value in stack.parameters.items()
    }
    stack.buffers = {
        name: value.repeat(count, *[1] * (value.ndim - 1)) for name, value in stack.buffers.items()
    }
    inputs, targets = data(case, device)
    shift = torch.zeros(count, case.targets, device=device)
    clients = {f"client {m}": len(inputs) for m in range(CLIENTS)}
    rows = torch.cat([inputs] * CLIENTS), torch.cat([targets] * CLIENTS)
    batches = Batches(*rows, clients, list(range(runs)), shift, 256)
    deficit = 0.1 * torch.eye(case.targets, device=device).expand(count, -1, -1)
    terms = Terms(stack.parameters["head.weight"].clone(), torch.full((count,), 1e-3, device=device), deficit)
    epochs = epochs_for(device, count, case)
    # as many rounds as a long run has, so that steps are compiled
    config = TrainConfig(rounds=1_000, epochs=epochs, features=features(case), precision=case.precision)
    fit = Fit(stack, batches, terms, config, continues=torch.zeros(count, dtype=torch.bool, device=device))
    return timed(lambda: fit.round(1), device) / (epochs * batches.steps)


def epochs_for(device: torch.device, models: int, case: Case) -> int:
    """Enough for about two seconds."""
    each = 0.2 if "mlp" in case.backbone else 4.0
    return max(3, round(2000 / (4 * max(each * models, 2.0))))


def plain_step(case: Case, device: torch.device) -> float:
    """Milliseconds of a step of one model, in the loop that a person would write."""
    network = model(case).to(device)
    inputs, targets = data(case, device)
    if len(case.shape) == 3:
        network = network.to(memory_format=torch.channels_last)
    start = network.head.weight.detach().clone()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.0)
    deficit = 0.1 * torch.eye(case.targets, device=device)
    epochs = 30

    def train() -> None:
        scaler = torch.amp.GradScaler(device.type, enabled=case.precision == "fp16")
        with use_precision(case.precision):
            for _ in range(epochs):
                for rows in torch.randperm(ROWS, device=device).split(256):
                    with autocast(case.precision, device):
                        h, predicted = network(to_model_input(inputs[rows], torch.float32))
                    h, predicted = h.float(), predicted.float()
                    weight = network.head.weight
                    inverse = torch.linalg.inv(
                        weight @ weight.T + 0.01 * torch.eye(case.targets, device=device)
                    )
                    loss = 0.5 * (predicted - targets[rows]).square().sum(1).mean()
                    loss = loss + 0.005 * h.square().sum(1).mean() + 0.005 * weight.square().sum()
                    loss = loss + 0.5e-3 * (weight - start).square().sum() + 0.005 * (deficit * inverse).sum()
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
                    scaler.step(optimizer)
                    scaler.update()

    return timed(train, device) / (epochs * ROWS // 256)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of the second of two calls."""
    for _ in range(2):
        begin = time.perf_counter()
        work()
        wait(device)
        took = time.perf_counter() - begin
    return 1e3 * took


def table(rows: list[Row]) -> Table:
    made = Table(title="Training steps (milliseconds)")
    for heading in HEADINGS:
        made.add_column(heading, justify="left" if heading in ("backbone", "precision") else "right")
    for row in rows:
        each = row.stack_ms / row.models
        share = f"{row.floor_ms / row.stack_ms:.0%}"
        numbers = (row.plain_ms, row.stack_ms, each, row.ratio, row.floor_ms)
        made.add_row(
            row.backbone,
            row.precision,
            str(row.models),
            *(f"{number:.3g}" for number in numbers),
            share,
            f"{row.peak_gib:.1f}",
        )
    return made


if __name__ == "__main__":
    main()
