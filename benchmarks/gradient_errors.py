"""Relative error of a network's gradient against fp64, by precision: before and after 80 steps of training.

    python benchmarks/gradient_errors.py [--device cuda]

On a GPU: the paper's ResMLP and ResNet-18 (batch 256), as in `training.py`. On a CPU: the small ResMLP. Data
are GENERATED noise. The error is that of all parameters together, of one model on one minibatch.
"""

from __future__ import annotations

import argparse

import torch

from fedgram.nets.batches import Batches
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.fit import Fit
from fedgram.nets.objective import Terms
from fedgram.nets.stack import BACKBONE_PREFIX, ModelStack, Tensors
from fedgram.runs.train_config import Precision, TrainConfig
from training import CPU, GPU, Case, data, features, model

ROWS, BATCH, EPOCHS = 512, 256, 40
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    for case in {case.backbone: case for case in (GPU if device.type == "cuda" else CPU)}.values():
        trained = prepare(case, "fp32", device)
        trained.round(1)
        for after, state in ((0, None), (EPOCHS * ROWS // BATCH, trained.stack.tensors)):
            exact = compute_gradient(case, "fp64", device, state)
            errors = {
                precision: float(
                    (compute_gradient(case, precision, device, state) - exact).norm() / exact.norm()
                )
                for precision in PRECISIONS
            }
            shown = ", ".join(f"{precision} {error:.1e}" for precision, error in errors.items())
            print(f"{case.backbone} after {after} steps: {shown}", flush=True)


def prepare(case: Case, precision: Precision, device: torch.device, state: Tensors | None = None) -> Fit:
    """Build one model, in a state if one is given."""
    dtype = storage_dtype(precision)
    stack = ModelStack.from_models([model(case)], device, dtype)
    for name, value in (state or {}).items():
        stack.tensors[name].copy_(value)
    inputs, targets = (rows[:ROWS] for rows in data(case, device))
    inputs = inputs if inputs.dtype == torch.uint8 else inputs.to(dtype)
    shift = torch.zeros(1, case.targets, device=device, dtype=dtype)
    batches = Batches(inputs, targets.to(dtype), {"client": ROWS}, [0], shift, BATCH)
    proximal = torch.full((1,), 1e-3, device=device, dtype=dtype)
    terms = Terms(stack.parameters["head.weight"].clone(), proximal, None)
    config = TrainConfig(rounds=1, epochs=EPOCHS, features=features(case), precision=precision)
    return Fit(stack, batches, terms, config, torch.zeros(1, dtype=torch.bool, device=device))


def compute_gradient(
    case: Case, precision: Precision, device: torch.device, state: Tensors | None
) -> torch.Tensor:
    """Return the gradient of all parameters on the first minibatch, in double precision."""
    fit = prepare(case, precision, device, state)
    fit.batches.shuffle(1, 0)
    fit.batches.select(0)
    with fit.stack.use_precision(precision):
        _, gradients, unscale = fit.gradients(slice(0, 1), BATCH)
    unit = 1.0 if unscale is None else float(unscale)
    return torch.cat(
        [
            (unit if name.startswith(BACKBONE_PREFIX) else 1.0) * gradient.double().flatten()
            for name, gradient in gradients.items()
        ]
    )


if __name__ == "__main__":
    main()
