"""What to know of a problem or a network before it is trained, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.problem import Problem, unattainable_part
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction, predict

FAR, LARGE = 100.0, 1000.0
"""How many deviations from 0 a column's mean may be, and how far from 1 its deviation, to be trained well."""

ROUNDING = 1e-20
"""Parts of a variance that equal targets of repeated rows may seem to have."""


def preflight_warnings(
    problem: Problem, model: nn.Module, inputs: Tensor, prediction: Prediction
) -> list[str]:
    """A sentence for each thing that will show in the results; inputs are a few that the model takes."""
    return [
        *_randomness(model, inputs),
        *_scales(problem),
        *_bytes(problem),
        *_unreachable(problem, prediction),
    ]


def _randomness(model: nn.Module, inputs: Tensor) -> list[str]:
    """Of a backbone with randomness of its own, which no key ties to seed, client and round."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        with suppress(Exception):  # of a user's module; training says what is wrong
            deepcopy(model).train()(inputs)
        drawn = not torch.equal(before, torch.get_rng_state())
    if not drawn:
        return []
    return [
        "The backbone draws random numbers as it trains, as dropout does: its runs come out differently each "
        "time, and when they go on after a stop."
    ]


def _scales(problem: Problem) -> list[str]:
    """Of columns that are far from 0 or of another scale than 1."""
    splits = problem.train.values()
    odd = _odd([split.targets for split in splits], "target", problem.moments.targets)
    if all(split.inputs.ndim == 2 for split in splits):
        odd += _odd([split.inputs for split in splits], "input", problem.provenance.get("inputs", ()))
    if not odd:
        return []
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return [
        f"Far from 0 or of another scale than 1 (mean ± deviation): {', '.join(odd[:3])}{more}. Networks "
        "learn such numbers slowly or not at all: subtract a constant from each, and divide by one, the same "
        "at all clients."
    ]


def _bytes(problem: Problem) -> list[str]:
    """Of pictures without an axis of channels, which are not known as such."""
    inputs = next(iter(problem.train.values())).inputs
    if inputs.dtype != np.uint8 or inputs.ndim != 3:
        return []
    return [
        "The inputs are bytes of shape (rows, height, width), which networks see as numbers up to 255. If "
        "they are images, give them an axis of channels, inputs[..., None]: then networks see them divided "
        "by 255."
    ]


def _odd(arrays: Sequence[Array], what: str, names: Sequence[str]) -> list[str]:
    """Columns of the clients' values (N, columns) to be named, with their mean and deviation."""
    rows = sum(map(len, arrays))
    mean = sum(values.sum(axis=0, dtype=np.float64) for values in arrays) / rows
    deviation = np.sqrt(sum(((values - mean) ** 2).sum(axis=0) for values in arrays) / rows)
    far = np.abs(mean) > FAR * np.where(deviation > 0, deviation, LARGE)
    scaled = (deviation > LARGE) | ((deviation > 0) & (deviation < 1 / LARGE))
    called = [f"'{name}'" for name in names] or [str(j + 1) for j in range(len(mean))]
    return [f"{what} {called[j]} ({mean[j]:.3g} ± {deviation[j]:.2g})" for j in np.flatnonzero(far | scaled)]


def _unreachable(problem: Problem, prediction: Prediction) -> list[str]:
    """Of rows with equal inputs and unequal targets."""
    parts = [unattainable_part(split.inputs, split.targets) for split in problem.train.values()]
    if max(parts) <= ROUNDING:
        return []
    most, clients = int(np.argmax(parts)), sum(part > ROUNDING for part in parts)
    return [
        f"Some rows with equal inputs have unequal targets, at {clients} of {len(parts)} clients (at "
        f"'{problem.clients[most]}' this is {100 * parts[most]:.3g} % of the target variance): no network "
        f"fits them, {_moved(problem, prediction)}. In Python 'problem.attainable()' has what they can fit."
    ]


def _moved(problem: Problem, prediction: Prediction) -> str:
    """By how much the limit is another one with the targets that networks can fit."""
    try:
        reached = predict(problem.attainable().moments, prediction.penalty).barycenter.gram
    except InputError:
        return "and of what they can fit there is no limit to predict"
    return f"which moves the limit by {100 * psd.relative_error(reached, prediction.barycenter.gram):.3g} %"
