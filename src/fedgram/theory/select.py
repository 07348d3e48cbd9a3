"""The selection rule, made to hold after ordinary training: by aligning a head, or by solving for it.

Both leave the client's predictions and penalties as good as it had them and return the head closest to
the broadcast. The exact rule itself, Π of eq. (8), is `closest_head`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import Array, as_finite_array, common_batch
from fedgram._util.errors import InputError
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.psd import closest_factor, transpose
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import phi, regularized_gram

# An eigenvalue of W Wᵀ below this fraction of λ_H: the head leaves that direction of the targets alone.
NEGLIGIBLE = 1e-2


def closest_head(broadcast: Array, gram: Array) -> Array:
    """Π(W), eq. (8): the head with this Gram (..., C, C) closest to the broadcast (..., C, P), P ≥ C."""
    head, gram = as_finite_array(broadcast, "broadcast"), psd.check_symmetric(gram, "gram")
    common_batch(broadcast=head.shape[:-2], gram=gram.shape[:-2])
    return closest_factor(head, gram)


@dataclass(frozen=True, eq=False)
class Alignment:
    """rotation Q (..., P, P), orthogonal, and head Ŵ Q (..., C, P), closest to the broadcast."""

    rotation: Array
    head: Array

    def layer(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """The feature layer u ↦ weight u + bias followed by Qᵀ, so that predictions stay the same.

        weight (..., P, D), bias (..., P) -> the same shapes.
        """
        turned = np.einsum("...qp,...q->...p", self.rotation, bias)
        return transpose(self.rotation) @ weight, turned


def align(head: Array, broadcast: Array) -> Alignment:
    """Q = argmin ‖Ŵ Q - W‖_F over orthogonal Q (Appendix F.5): heads (..., C, P) each.

    Q is unique on the heads' row spaces only; there it is the polar factor of Ŵᵀ W, and the completion
    takes one orthogonal complement to the other. Works in C dimensions, P is touched by two QRs.
    """
    head, broadcast = as_finite_array(head, "head"), as_finite_array(broadcast, "broadcast")
    if head.ndim < 2 or head.shape[-2:] != broadcast.shape[-2:]:
        raise InputError(
            f"The head has shape {head.shape} and the broadcast {broadcast.shape}; both must have shape "
            "(..., targets, features), of as many of each.",
            field="broadcast",
        )
    rows = head.shape[-2]
    psd.check_head(head, rows)
    common_batch(head=head.shape[:-2], broadcast=broadcast.shape[:-2])
    ours, ours_r = np.linalg.qr(transpose(head), mode="complete")
    theirs, theirs_r = np.linalg.qr(transpose(broadcast), mode="complete")
    left, _, right = np.linalg.svd(ours_r[..., :rows, :] @ transpose(theirs_r[..., :rows, :]))
    rotation = ours[..., :rows] @ (left @ right) @ transpose(theirs[..., :rows])
    rotation = rotation + ours[..., rows:] @ transpose(theirs[..., rows:])
    return Alignment(rotation, head @ rotation)


@dataclass(frozen=True, eq=False)
class SolvedReturn:
    """The exact minimiser of a client's loss over its last feature layer, head and both biases.

    head W (C, P) closest to the broadcast, bias μ (C,); the feature layer u ↦ layer_weight u + layer_bias
    with shapes (P, D) and (P,); explained Ŝ (C, C), the target covariance that the inputs u explain;
    clipped, how many directions of Ŝ (with the correction) were not active.
    """

    head: Array
    bias: Array
    layer_weight: Array
    layer_bias: Array
    explained: Array
    clipped: int


def solve(
    inputs: Array,
    targets: Array,
    broadcast: Array,
    penalty: Penalty,
    deficit: Array | None = None,
    trained: Array | None = None,
    weak: float | None = None,
) -> SolvedReturn:
    """Solve for the last layers on frozen inputs u of the last feature layer.

    inputs (N, D), targets (N, C), broadcast (C, P); deficit γ (Σ_cen - Σ_m) (C, C) adds the moment
    correction. With B the least-squares map from centered u to centered targets and Ŝ = Cov(B u), the
    profiled loss is F(W; Ŝ + deficit) + const, so W Wᵀ = φ(Ŝ + deficit) and the features are
    Wᵀ A⁻¹ B (u - ū). Where several maps fit as well, B is the one closest to `trained` (C, D), the map that
    training found (`unshrunk`), or else the smallest; directions of u below the fraction `weak` of the
    strongest stay as they are there.
    """
    penalty = Penalty.or_default(penalty)
    inputs, targets, broadcast = (
        _matrix(values, name)
        for values, name in ((inputs, "inputs"), (targets, "targets"), (broadcast, "broadcast"))
    )
    if len(inputs) != len(targets):
        raise InputError(f"There are {len(inputs)} inputs but {len(targets)} targets.", field="inputs")
    center, bias = inputs.mean(axis=0), targets.mean(axis=0)
    maps = (targets.shape[1], inputs.shape[1])
    before = (
        np.zeros(maps) if trained is None else _shaped(as_finite_array(trained, "trained"), maps, "trained")
    )
    rest = targets - bias - (inputs - center) @ before.T
    fitted = before + np.linalg.lstsq(inputs - center, rest, rcond=weak)[0].T
    values = (inputs - center) @ fitted.T
    explained = values.T @ values / len(targets)
    added = np.zeros_like(explained) if deficit is None else psd.check_symmetric(deficit, "deficit")
    desired = explained + _shaped(added, explained.shape, "deficit")
    head = closest_head(broadcast, phi(desired, penalty))
    weight = head.T @ np.linalg.solve(regularized_gram(head, penalty), fitted)
    clipped = int((np.linalg.eigvalsh(psd.symmetric(desired)) <= penalty.threshold).sum())
    return SolvedReturn(head, bias, weight, -weight @ center, explained, clipped)


def unshrink(head: Array, layer_weight: Array, penalty: Penalty) -> Array:
    """The map B whose optimal features Wᵀ A⁻¹ B u trained layers give: A (W Wᵀ)⁻¹ W L.

    head W (C, P), layer_weight L (P, D) -> (C, D). Predictions W L u are B u less what the penalties cost.
    A direction that the head hardly uses is blown up by no more than about 1 / NEGLIGIBLE.
    """
    penalty, head = Penalty.or_default(penalty), _matrix(head, "head")
    layer_weight = _matrix(layer_weight, "layer_weight")
    if head.shape[1] != len(layer_weight):
        raise InputError(
            f"The head has {head.shape[1]} features but the layer gives {len(layer_weight)}.",
            field="layer_weight",
        )
    values, basis = np.linalg.eigh(psd.gram(head))
    gain = (values + penalty.features) / np.maximum(values, NEGLIGIBLE * penalty.features)
    return np.asarray((basis * gain) @ basis.T @ head @ layer_weight)


def _shaped(array: Array, shape: tuple[int, ...], name: str) -> Array:
    if array.shape != shape:
        raise InputError(f"{name} must have shape {shape} for these rows, not {array.shape}.", field=name)
    return array


def _matrix(values: Any, name: str) -> Array:
    """One client's matrix as finite float64."""
    array = as_finite_array(values, name)
    if array.ndim != 2 or not len(array):
        raise InputError(f"{name} must have shape (rows, columns), not {array.shape}.", field=name)
    return array
