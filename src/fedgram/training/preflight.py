"""Warnings about a problem or network before it is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.equal_inputs import unattainable_fraction
from fedgram.data.problem import Problem
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction, predict

# Scales that networks learn well. Hourly PM2.5 in raw units (deviation 80) lowers R² from 0.88 to 0.70.
MAX_MEAN = 3.0  # of a column's |mean|, in its standard deviations
MIN_DEVIATION, MAX_DEVIATION = 0.1, 10.0
NAMED = 10  # columns that one warning names
ROUNDING = 1e-20  # fraction of the variance that equal targets of repeated rows may seem to have


def preflight_warnings(
    problem: Problem, model: nn.Module, inputs: Tensor, prediction: Prediction | None
) -> Iterator[str]:
    """Yield a warning for each property that will affect the results.

    inputs: a few model inputs; prediction: what training is compared with, None if it has no limit.
    """
    if _draws_random_numbers(model, inputs):
        yield (
            "The backbone draws random numbers while training, as dropout does. Repeated and resumed runs "
            "will differ."
        )
    if columns := _find_bad_scales(problem):
        more = f" and {len(columns) - NAMED} more" if len(columns) > NAMED else ""
        yield (
            f"Badly scaled columns (mean ± deviation): {', '.join(columns[:NAMED])}{more}. Networks learn "
            "them slowly or not at all. Train a table with --standardize; standardize arrays with one mean "
            "and one deviation per column for all clients."
        )
    first = next(iter(problem.train.values())).inputs
    if first.dtype == np.uint8 and first.ndim == 3:
        yield (
            "Inputs are uint8 of shape (rows, height, width), so networks receive values up to 255. For "
            "images, add a channel axis, inputs[..., None], to scale them to [0, 1]."
        )
    fractions = [unattainable_fraction(split.inputs, split.targets) for split in problem.train.values()]
    if prediction is not None and max(fractions) > ROUNDING:
        worst, clients = int(np.argmax(fractions)), sum(each > ROUNDING for each in fractions)
        yield (
            f"Rows with equal inputs have unequal targets at {clients} of {len(fractions)} clients "
            f"({100 * fractions[worst]:.3g} % of the target variance at '{problem.clients[worst]}'), which "
            f"no network fits; {_describe_shift(problem, prediction)}. In Python, predict for "
            "problem.attainable()."
        )


def _draws_random_numbers(model: nn.Module, inputs: Tensor) -> bool:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        with suppress(Exception):  # training reports errors of a user's module
            deepcopy(model).train()(inputs)
        return not torch.equal(before, torch.get_rng_state())


def _find_bad_scales(problem: Problem) -> list[str]:
    if "encoding" in problem.provenance:
        return []  # standardized with pooled moments; columns of rare categories keep a small deviation
    splits = problem.train.values()
    columns = _describe_bad_columns([split.targets for split in splits], "target", problem.moments.targets)
    if all(split.inputs.ndim == 2 for split in splits):
        names = problem.provenance.get("inputs", ())
        columns += _describe_bad_columns([split.inputs for split in splits], "input", names)
    return columns


def _describe_bad_columns(arrays: Sequence[Array], role: str, names: Sequence[str]) -> list[str]:
    """Describe badly scaled columns of the clients' values (N, columns) with mean and deviation."""
    rows = sum(map(len, arrays))
    mean = sum(values.sum(axis=0, dtype=np.float64) for values in arrays) / rows
    deviation = np.sqrt(sum(((values - mean) ** 2).sum(axis=0) for values in arrays) / rows)
    first = arrays[0][0]
    is_constant = np.all([(values == first).all(axis=0) for values in arrays], axis=0)
    # A constant only shifts the first layer, unless it is large.
    far = np.abs(mean) > np.where(is_constant, MAX_DEVIATION, MAX_MEAN * deviation)
    scaled = (deviation > MAX_DEVIATION) | ((deviation < MIN_DEVIATION) & ~is_constant)
    labels = [f"'{name}'" for name in names] or [str(j + 1) for j in range(len(mean))]
    return [f"{role} {labels[j]} ({mean[j]:.3g} ± {deviation[j]:.2g})" for j in np.flatnonzero(far | scaled)]


def _describe_shift(problem: Problem, prediction: Prediction) -> str:
    """Describe how the barycenter differs for the targets that networks can fit."""
    try:
        reached = predict(problem.attainable().moments, prediction.penalty).barycenter.gram
    except InputError:
        return "there is no barycenter of the attainable targets"
    change = psd.relative_error(reached, prediction.barycenter.gram)
    return f"this moves the barycenter by {100 * change:.3g} %"
