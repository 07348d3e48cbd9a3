"""Apply the selection rule after training: align a head, or solve for it.

`closest_head` is the exact rule Π, eq. (8). `align` and `solve` return the head closest to the broadcast
among those that keep the client's predictions and penalties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_finite_array, common_batch
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram._util.text import pluralize
from fedgram.theory.derivatives import regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import phi

# Fraction of λ_H below which the head ignores an eigendirection of W Wᵀ.
NEGLIGIBLE = 1e-2


def closest_head(broadcast: Array, gram: Array) -> Array:
    """Find the head with a given Gram closest to the broadcast: Π(W), eq. (8).

    Parameters
    ----------
    broadcast
        Head W, (..., C, P) with P ≥ C.
    gram
        Gram, (..., C, C), positive semidefinite.

    Returns
    -------
    ndarray
        Head U with U Uᵀ = gram, (..., C, P).

    Raises
    ------
    InputError
        If shapes do not match, values are not finite, or the Gram is not symmetric.

    Examples
    --------
    >>> from fedgram import closest_head
    >>> closest_head([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[4.0, 0.0], [0.0, 9.0]]).tolist()
    [[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]
    """
    head, gram = as_finite_array(broadcast, "broadcast"), psd.check_symmetric(gram, "gram")
    common_batch(broadcast=head.shape[:-2], gram=gram.shape[:-2])
    return closest_factor(head, gram)


@dataclass(frozen=True, eq=False)
class Alignment(DisplayMethods):
    """Orthogonal rotation Q (..., P, P), and head Ŵ Q (..., C, P) closest to the broadcast."""

    rotation: Array
    head: Array

    def __repr__(self) -> str:
        return f"Alignment({_describe_head(self.head)})"

    def layer(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Rotate the feature layer u ↦ weight u + bias by Qᵀ, so that predictions stay the same.

        weight (..., P, D), bias (..., P) -> the same shapes.
        """
        turned = np.einsum("...qp,...q->...p", self.rotation, bias)
        return self.rotation.mT @ weight, turned


def align(head: Array, broadcast: Array) -> Alignment:
    """Rotate a head toward the broadcast: Q = argmin ‖Ŵ Q - W‖_F over orthogonal Q (Appendix F.5).

    Q is unique on the heads' row spaces only; it maps one orthogonal complement to the other.

    Parameters
    ----------
    head
        Trained head Ŵ, (..., C, P) with P ≥ C.
    broadcast
        Head W, (..., C, P).

    Returns
    -------
    Alignment
        rotation Q, (..., P, P), and head Ŵ Q, (..., C, P).

    Raises
    ------
    InputError
        If shapes do not match, or values are not finite.

    Examples
    --------
    >>> from fedgram import align
    >>> aligned = align([[0.0, 2.0]], [[1.0, 0.0]])
    >>> abs(aligned.head).round(12).tolist()
    [[2.0, 0.0]]
    >>> aligned
    Alignment(1 target, 2 features)
    """
    head, broadcast = as_finite_array(head, "head"), as_finite_array(broadcast, "broadcast")
    if head.ndim < 2 or head.shape[-2:] != broadcast.shape[-2:]:
        raise InputError(
            f"The head has shape {head.shape} and the broadcast {broadcast.shape}. Both must have the same "
            "shape (..., targets, features).",
            field="broadcast",
        )
    rows = head.shape[-2]
    psd.check_head(head, rows)
    common_batch(head=head.shape[:-2], broadcast=broadcast.shape[:-2])
    ours, ours_r = np.linalg.qr(head.mT, mode="complete")
    theirs, theirs_r = np.linalg.qr(broadcast.mT, mode="complete")
    left, _, right = np.linalg.svd(ours_r[..., :rows, :] @ theirs_r[..., :rows, :].mT)
    rotation = ours[..., :rows] @ (left @ right) @ theirs[..., :rows].mT
    rotation = rotation + ours[..., rows:] @ theirs[..., rows:].mT
    return Alignment(rotation, head @ rotation)


@dataclass(frozen=True, eq=False)
class SolvedReturn(DisplayMethods):
    """Exact minimizer of a client's loss over its last feature layer, head and both biases.

    head W (C, P) closest to the broadcast; bias μ (C,); feature layer u ↦ layer_weight u + layer_bias with
    shapes (P, D) and (P,); explained Ŝ (C, C), the target covariance that the inputs u explain; clipped, the
    number of inactive directions of Ŝ + deficit.
    """

    head: Array
    bias: Array
    layer_weight: Array
    layer_bias: Array
    explained: Array
    clipped: int

    def __repr__(self) -> str:
        return f"SolvedReturn({_describe_head(self.head)}, {pluralize(self.layer_weight.shape[-1], 'input')})"


def solve(
    inputs: Array,
    targets: Array,
    broadcast: Array,
    penalty: Penalty,
    deficit: Array | None = None,
    trained: Array | None = None,
    weak: float | None = None,
) -> SolvedReturn:
    """Solve for the last layers of a client on frozen inputs u of its last feature layer.

    With B the least-squares map from centered u to centered targets and Ŝ = Cov(B u), the profiled loss is
    F(W; Ŝ + deficit) + const. Hence W Wᵀ = φ(Ŝ + deficit), and features are Wᵀ A⁻¹ B (u - ū), eq. (B5).

    Parameters
    ----------
    inputs
        Inputs u of the last feature layer, (N, D).
    targets
        Targets, (N, C).
    broadcast
        Broadcast head, (C, P) with P ≥ C.
    penalty
        λ_H and λ_W.
    deficit
        γ (Σ_cen - Σ_m), (C, C), for the moment correction.
    trained
        Map (C, D) that training found (`unshrink`). Of several best maps, B is the closest to it; by default
        the smallest.
    weak
        Directions of u below this fraction of the strongest keep their trained map.

    Returns
    -------
    SolvedReturn
        Head (C, P), bias (C,), layer_weight (P, D) and layer_bias (P,).

    Raises
    ------
    InputError
        If shapes do not match, or values are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from fedgram import Penalty, solve
    >>> inputs = np.array([[-1.0], [1.0], [3.0]])
    >>> solved = solve(inputs, 3 * inputs, np.array([[1.0]]), Penalty(features=0.01, head=0.01))
    >>> solved.bias.tolist(), solved.explained.round(4).tolist()
    ([3.0], [[24.0]])
    >>> (solved.head @ solved.layer_weight).round(4).tolist()
    [[2.9939]]
    >>> print(solved.summary())
    The inputs explain these variances: 24 of target 1.
    """
    penalty = Penalty.or_default(penalty)
    inputs, targets = _matrix(inputs, "inputs"), _matrix(targets, "targets")
    broadcast = _matrix(broadcast, "broadcast")
    if len(inputs) != len(targets):
        raise InputError(f"There are {len(inputs)} inputs but {len(targets)} targets.", field="inputs")
    center, bias = inputs.mean(axis=0), targets.mean(axis=0)
    shape = (targets.shape[1], inputs.shape[1])
    before = np.zeros(shape) if trained is None else as_finite_array(trained, "trained")
    _check_shape(before, shape, "trained")
    rest = targets - bias - (inputs - center) @ before.T
    fitted = before + np.linalg.lstsq(inputs - center, rest, rcond=weak)[0].T
    values = (inputs - center) @ fitted.T
    explained = values.T @ values / len(targets)
    added = np.zeros_like(explained) if deficit is None else psd.check_symmetric(deficit, "deficit")
    _check_shape(added, explained.shape, "deficit")
    desired = explained + added
    head = closest_head(broadcast, phi(desired, penalty))
    weight = head.T @ np.linalg.solve(regularized_gram(head, penalty), fitted)
    clipped = int((np.linalg.eigvalsh(psd.symmetric(desired)) <= penalty.threshold).sum())
    return SolvedReturn(head, bias, weight, -weight @ center, explained, clipped)


def unshrink(head: Array, layer_weight: Array, penalty: Penalty) -> Array:
    """Undo the shrinkage of trained layers: the map B = A (W Wᵀ)⁻¹ W L whose optimal features they compute.

    Directions that the head hardly uses grow by at most about 1 / NEGLIGIBLE.

    Parameters
    ----------
    head
        Head W, (C, P).
    layer_weight
        Weight L of the last feature layer, (P, D).
    penalty
        λ_H and λ_W; A = W Wᵀ + λ_H I.

    Returns
    -------
    ndarray
        Map B, (C, D).

    Raises
    ------
    InputError
        If shapes do not match, or values are not finite.

    Examples
    --------
    >>> from fedgram import Penalty, unshrink
    >>> unshrink([[2.0]], [[3.0]], Penalty(features=1.0, head=1.0)).tolist()
    [[7.5]]
    """
    penalty, head = Penalty.or_default(penalty), _matrix(head, "head")
    layer_weight = _matrix(layer_weight, "layer_weight")
    if head.shape[1] != len(layer_weight):
        raise InputError(
            f"The head has {head.shape[1]} features but the layer has {len(layer_weight)}.",
            field="layer_weight",
        )
    values, basis = np.linalg.eigh(psd.gram(head))
    gain = (values + penalty.features) / np.maximum(values, NEGLIGIBLE * penalty.features)
    return np.asarray((basis * gain) @ basis.T @ head @ layer_weight)


def _describe_head(head: Array) -> str:
    targets, features = head.shape[-2:]
    return f"{pluralize(targets, 'target')}, {pluralize(features, 'feature')}"


def _check_shape(array: Array, shape: tuple[int, ...], name: str) -> None:
    if array.shape != shape:
        raise InputError(f"{name} must have shape {shape} for these rows, not {array.shape}.", field=name)


def _matrix(values: Any, name: str) -> Array:
    array = as_finite_array(values, name)
    if array.ndim != 2 or not len(array):
        raise InputError(f"{name} must have shape (rows, columns), not {array.shape}.", field=name)
    return array
