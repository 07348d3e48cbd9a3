"""What a client returns after local training: its head as trained, aligned to the broadcast, or solved for.

The batched torch form of `fedgram.theory.select`, in double precision on the models' device.
Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.runs.procedure import Procedure
from fedgram.theory.penalty import Penalty

Rows = tuple[Tensor, Tensor]

# Directions of u weaker than this fraction of the strongest stay as they were trained. Least squares would
# fit the rest of every row in them, by a map so large that it says nothing about new rows.
WEAK = 1e-2

# An eigenvalue of W Wᵀ below this fraction of λ_H: the head leaves that direction of the targets alone.
NEGLIGIBLE = 1e-2


@dataclass(frozen=True, eq=False)
class Layers:
    """The last layers of K models, in double precision.

    head W (K, C, P), bias b (K, C), and the feature layer u ↦ layer_weight u + layer_bias with shapes
    (K, P, D) and (K, P).
    """

    head: Tensor
    bias: Tensor
    layer_weight: Tensor
    layer_bias: Tensor

    def features(self, outputs: Tensor) -> Tensor:
        """h of backbone outputs u: (K, N, D) -> (K, N, P)."""
        return outputs.double() @ self.layer_weight.mT + self.layer_bias[:, None]

    def center(self, outputs: Tensor) -> Tensor:
        """The mean of the features of backbone outputs u: (K, N, D) -> (K, P)."""
        return self.features(outputs.double().mean(dim=1, keepdim=True))[:, 0]

    def of(self, models: slice) -> Layers:
        """The layers of some of the models."""
        return Layers(
            self.head[models], self.bias[models], self.layer_weight[models], self.layer_bias[models]
        )

    @classmethod
    def joined(cls, each: Sequence[Layers]) -> Layers:
        """The layers of several groups of models, as one."""
        return cls(*(torch.cat(values) for values in zip(*(vars(one).values() for one in each), strict=True)))


@dataclass(frozen=True, eq=False)
class ReturnedLayers:
    """What a client returns and predicts with, and what it goes on training with.

    center (1, P) is the mean of its features as returned, before a procedure with the offset takes it out;
    left_out counts directions that a solved return left out.
    """

    returned: Layers
    kept: Layers
    center: Tensor
    left_out: int


def return_layers(
    procedure: Procedure, layers: Layers, rows: Rows, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> ReturnedLayers:
    """What becomes of a client's layers after its training.

    All tensors have K = 1; rows are the backbone's outputs u (1, N, D) for its training rows, and their
    targets (1, N, C). Solved layers are not trained on: a map that fits every row reacts to every change of
    the backbone. The client goes on with its trained ones, in the coordinates of the broadcast.
    """
    left_out = 0
    returned = kept = layers if procedure.returned == "trained" else aligned(layers, broadcast)
    if procedure.returned == "solved":
        returned, clipped = solved(unshrunk(layers, penalty), *rows, broadcast, deficit, penalty)
        left_out = int(clipped)
    center = returned.center(rows[0])
    if procedure.bias == "offset":
        returned, kept = recentered(returned, center), recentered(kept, kept.center(rows[0]))
    return ReturnedLayers(returned, kept, center, left_out)


def aligned(layers: Layers, broadcast: Tensor) -> Layers:
    """W Q and Qᵀ (layer) for the orthogonal Q (P, P) that brings W Q closest to the broadcast (K, C, P).

    Q is unique on the heads' row spaces only; there it is the polar factor of Wᵀ W_t, and the completion
    takes one orthogonal complement to the other (Appendix F.5).
    """
    rows = broadcast.shape[1]
    ours, ours_r = torch.linalg.qr(layers.head.mT, mode="complete")
    theirs, theirs_r = torch.linalg.qr(broadcast.mT, mode="complete")
    left, _, right = torch.linalg.svd(ours_r[:, :rows] @ theirs_r[:, :rows].mT)
    turn = (
        ours[..., :rows] @ (left @ right) @ theirs[..., :rows].mT + ours[..., rows:] @ theirs[..., rows:].mT
    )
    weight, bias = turn.mT @ layers.layer_weight, applied(turn.mT, layers.layer_bias)
    return Layers(layers.head @ turn, layers.bias, weight, bias)


def solved(
    trained: Tensor, outputs: Tensor, targets: Tensor, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> tuple[Layers, Tensor]:
    """The minimiser of each client's loss over its last layers, and how many directions were clipped.

    trained (K, C, D), the map from u to targets that training found; outputs u (K, N, D), targets
    (K, N, C), broadcast (K, C, P), deficit γ (Σ_cen - Σ_m) (K, C, C). With B the least-squares map from
    centered u to centered targets, of all the one closest to the trained map, and Ŝ = Cov(B u), the loss is
    F(W; Ŝ + deficit) up to a constant, so that W Wᵀ = φ(Ŝ + deficit); the features are Wᵀ A⁻¹ B (u - ū).
    Exact but for WEAK directions of u.
    """
    center, bias = outputs.double().mean(dim=1, keepdim=True), targets.mean(dim=1)
    inputs, wanted = outputs.double() - center, targets - bias[:, None]
    fitted = least_squares(inputs, wanted, trained.mT)
    explained = (inputs @ fitted).mT @ (inputs @ fitted) / targets.shape[1]
    variance, basis = torch.linalg.eigh(explained + deficit)
    active = variance > penalty.threshold
    gain = penalty.scale * variance.clamp(min=0.0).sqrt() - penalty.features  # φ, eq. (7)
    head = closest(broadcast, basis * torch.where(active, gain, 0.0).clamp(min=0.0).sqrt()[:, None])
    system = head @ head.mT + penalty.features * torch.eye(head.shape[1]).to(head)
    weight = head.mT @ torch.linalg.solve(system, fitted.mT)
    solution = Layers(head, bias, weight, -(weight @ center.mT)[..., 0])
    return solution, (~active).sum(dim=1)


def least_squares(inputs: Tensor, wanted: Tensor, start: Tensor) -> Tensor:
    """The map (K, D, C) closest to start of those that take inputs (K, N, D) closest to what is wanted.

    wanted (K, N, C). In WEAK directions of the inputs the map stays as it is at the start.
    """
    values, basis = torch.linalg.eigh(inputs.mT @ inputs)
    strong = values > WEAK**2 * values[:, -1:]
    inverse = torch.where(strong, 1 / values, 0.0)[..., None]
    for _ in range(2):  # the second time for the digits that squaring the inputs cost
        rest = inputs.mT @ (wanted - inputs @ start)
        start = start + basis @ (inverse * (basis.mT @ rest))
    return start


def unshrunk(layers: Layers, penalty: Penalty) -> Tensor:
    """The map B (K, C, D) whose optimal features Wᵀ A⁻¹ B u the layers give: A (W Wᵀ)⁻¹ W L.

    Left as W L, in WEAK directions B would be shrunk by the penalties a second time.
    """
    values, basis = torch.linalg.eigh(layers.head @ layers.head.mT)
    gain = (values + penalty.features) / values.clamp(min=NEGLIGIBLE * penalty.features)
    return (basis * gain[:, None]) @ basis.mT @ layers.head @ layers.layer_weight


def closest(broadcast: Tensor, factor: Tensor) -> Tensor:
    """The head U (K, C, P) with U Uᵀ = factor factorᵀ that is closest to the broadcast, eq. (8)."""
    left, _, right = torch.linalg.svd(factor.mT @ broadcast, full_matrices=False)
    return factor @ left @ right


def recentered(layers: Layers, mean: Tensor) -> Layers:
    """The same predictions with features that have mean 0: the old mean (K, P) goes into the head's bias."""
    bias = layers.bias + applied(layers.head, mean)
    return Layers(layers.head, bias, layers.layer_weight, layers.layer_bias - mean)


def applied(matrices: Tensor, vectors: Tensor) -> Tensor:
    """(K, C, P) and (K, P) -> (K, C)."""
    return (matrices @ vectors[..., None])[..., 0]


def feature_offset(head: Tensor, distance: Tensor, penalty: Penalty) -> Tensor:
    """Wᵀ A⁻¹ d_m, what re-centered features miss under a shared bias: heads (K, C, P), d (K, C) -> (K, P)."""
    system = head @ head.mT + penalty.features * torch.eye(head.shape[1]).to(head)
    return applied(head.mT, torch.linalg.solve(system, distance[..., None])[..., 0])
