"""What to know of a problem or a network before it is trained, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from fedgram.data.problem import Problem, Split
from fedgram.psd import Array

RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

FAR, LARGE = 100.0, 1000.0
"""How many deviations from 0 a column's mean may be, and how far from 1 its deviation, to be trained well."""


ROUNDING = 1e-20
"""Parts of a variance that equal targets of repeated rows may seem to have."""


def cautions(problem: Problem, model: nn.Module) -> list[str]:
    """A sentence for each thing that will show in the results."""
    return [*_randomness(model), *_scales(problem), *_unreachable(problem)]


def _randomness(model: nn.Module) -> list[str]:
    """Of a backbone with randomness of its own, which no key ties to seed, client and round."""
    kinds = sorted({type(each).__name__ for each in model.modules() if isinstance(each, RANDOM)})
    if not kinds:
        return []
    return [
        f"The backbone draws random numbers as it trains ({', '.join(kinds)}): its runs come out differently "
        "each time, and when they go on after a stop."
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


def _odd(arrays: Sequence[Array], what: str, names: Sequence[str]) -> list[str]:
    """Columns of the clients' values (N, columns) to be named, with their mean and deviation."""
    rows = sum(map(len, arrays))
    mean = sum(values.sum(axis=0, dtype=np.float64) for values in arrays) / rows
    deviation = np.sqrt(sum(((values - mean) ** 2).sum(axis=0) for values in arrays) / rows)
    far = np.abs(mean) > FAR * np.where(deviation > 0, deviation, LARGE)
    scaled = (deviation > LARGE) | ((deviation > 0) & (deviation < 1 / LARGE))
    called = [f"'{name}'" for name in names] or [str(j + 1) for j in range(len(mean))]
    return [f"{what} {called[j]} ({mean[j]:.3g} ± {deviation[j]:.2g})" for j in np.flatnonzero(far | scaled)]


def _unreachable(problem: Problem) -> list[str]:
    """Of rows with equal inputs and unequal targets."""
    parts = {client: unexplained(split) for client, split in problem.train.items()}
    found = {client: part for client, part in parts.items() if part > ROUNDING}
    if not found:
        return []
    most = max(found, key=lambda client: found[client])
    return [
        f"Some rows with equal inputs have unequal targets, at {len(found)} of {len(parts)} clients (at "
        f"'{most}' this is {100 * found[most]:.2g} % of the target variance): no network fits them, and the "
        "prediction is for networks that fit all rows."
    ]


def unexplained(split: Split) -> float:
    """The part of the target variance within rows whose inputs single precision cannot tell apart."""
    inputs = split.inputs.astype(np.float32) if split.inputs.dtype.kind == "f" else split.inputs
    rows = np.ascontiguousarray(inputs.reshape(len(inputs), -1))
    _, group, count = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}"), return_inverse=True, return_counts=True
    )
    group = group.ravel()
    sums = np.zeros((len(count), split.targets.shape[1]))
    np.add.at(sums, group, split.targets)
    apart = split.targets - sums[group] / count[group, None]
    return float((apart**2).sum() / ((split.targets - split.targets.mean(axis=0)) ** 2).sum())
