"""Layers that a client returns: as trained, aligned, or solved.

The batched PyTorch version of `fedgram.theory.select`, in double precision. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.nets.stack import Tensors
from fedgram.runs.procedure import Procedure
from fedgram.theory.penalty import Penalty

Rows = tuple[Tensor, Tensor]

# Directions of u below this fraction of the strongest one keep the trained map. Least squares would fit the
# residual of every row there with a map too large to generalize.
WEAK = 1e-2

# Eigenvalues of W Wᵀ below this fraction of λ_H: the head ignores that direction of the targets.
NEGLIGIBLE = 1e-2

PARAMETERS = ("head.weight", "head.bias", "feature.weight", "feature.bias")
"""Parameters of `nets.model.Model` in the order of the fields of `Layers`."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Last layers of K models, in double precision.

    head W (K, C, P), bias b (K, C), and the feature layer u -> layer_weight u + layer_bias with shapes
    (K, P, D) and (K, P).
    """

    head: Tensor
    bias: Tensor
    layer_weight: Tensor
    layer_bias: Tensor

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Tensor]) -> Layers:
        """Read the last layers from parameters by name."""
        return cls(*(parameters[name].double() for name in PARAMETERS))

    def to_parameters(self) -> Tensors:
        """Return the layers as parameters by name."""
        return dict(zip(PARAMETERS, vars(self).values(), strict=True))

    @classmethod
    def concatenate(cls, groups: Sequence[Layers]) -> Layers:
        """Concatenate the layers of several groups of models."""
        return cls(*map(torch.cat, zip(*(vars(each).values() for each in groups), strict=True)))

    def select(self, models: slice) -> Layers:
        """Return the layers of some models."""
        return Layers(*(value[models] for value in vars(self).values()))

    def features(self, outputs: Tensor) -> Tensor:
        """Compute features h from backbone outputs u: (K, N, D) -> (K, N, P)."""
        return outputs.double() @ self.layer_weight.mT + self.layer_bias[:, None]

    def center(self, outputs: Tensor) -> Tensor:
        """Compute the mean feature of backbone outputs u: (K, N, D) -> (K, P)."""
        return self.features(outputs.double().mean(dim=1, keepdim=True))[:, 0]


@dataclass(frozen=True, eq=False)
class ReturnedLayers:
    """Layers that a client returns and predicts with, and layers that it continues training with.

    center (1, P): mean feature before a procedure with the offset removes it; clipped: directions that a
    solved return dropped.
    """

    returned: Layers
    resume_from: Layers
    center: Tensor
    clipped: int


def return_layers(
    procedure: Procedure, layers: Layers, rows: Rows, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> ReturnedLayers:
    """Apply a procedure's return rule to the trained layers of one client (K = 1).

    rows are backbone outputs u (1, N, D) of the training rows and targets (1, N, C). Training continues from
    trained layers, not from solved ones: a map that fits every row reacts to every change of the backbone.
    """
    clipped = 0
    returned = resume_from = layers if procedure.returned == "trained" else align_layers(layers, broadcast)
    if procedure.returned == "solved":
        returned, counts = solve_layers(unshrink(layers, penalty), *rows, broadcast, deficit, penalty)
        clipped = int(counts)
    center = returned.center(rows[0])
    if procedure.bias == "offset":
        returned = recenter(returned, center)
        resume_from = recenter(resume_from, resume_from.center(rows[0]))
    return ReturnedLayers(returned, resume_from, center, clipped)


def align_layers(layers: Layers, broadcast: Tensor) -> Layers:
    """Rotate features by the orthogonal Q (P, P) that moves W Q closest to the broadcast (K, C, P).

    Q is unique only on the row spaces of the heads, where it is the polar factor of Wᵀ W_t. The completion
    maps one orthogonal complement to the other (Appendix F.5).
    """
    rows = broadcast.shape[1]
    ours, ours_r = torch.linalg.qr(layers.head.mT, mode="complete")
    theirs, theirs_r = torch.linalg.qr(broadcast.mT, mode="complete")
    left, _, right = torch.linalg.svd(ours_r[:, :rows] @ theirs_r[:, :rows].mT)
    turn = (
        ours[..., :rows] @ (left @ right) @ theirs[..., :rows].mT + ours[..., rows:] @ theirs[..., rows:].mT
    )
    weight, bias = turn.mT @ layers.layer_weight, multiply(turn.mT, layers.layer_bias)
    return Layers(layers.head @ turn, layers.bias, weight, bias)


def solve_layers(
    trained: Tensor, outputs: Tensor, targets: Tensor, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> tuple[Layers, Tensor]:
    """Minimize each client's loss over its last layers; also return the number of dropped directions (K,).

    With B the least-squares map from centered u to centered targets and Ŝ = Cov(B u), the loss is
    F(W; Ŝ + deficit) up to a constant. So W Wᵀ = φ(Ŝ + deficit), and h = Wᵀ A⁻¹ B (u - ū). This is exact
    except in WEAK directions of u, where B stays at the trained map.

    Shapes: trained map (K, C, D), outputs u (K, N, D), targets (K, N, C), broadcast (K, C, P), deficit
    γ (Σ_cen - Σ_m) (K, C, C).
    """
    center, bias = outputs.double().mean(dim=1, keepdim=True), targets.mean(dim=1)
    inputs, centered = outputs.double() - center, targets - bias[:, None]
    fitted = least_squares(inputs, centered, trained.mT)
    explained = (inputs @ fitted).mT @ (inputs @ fitted) / targets.shape[1]
    variance, basis = torch.linalg.eigh(explained + deficit)
    active = variance > penalty.threshold
    gain = penalty.scale * variance.clamp(min=0.0).sqrt() - penalty.features  # φ, eq. (7)
    head = closest_head(broadcast, basis * torch.where(active, gain, 0.0).clamp(min=0.0).sqrt()[:, None])
    system = head @ head.mT + penalty.features * torch.eye(head.shape[1]).to(head)
    weight = head.mT @ torch.linalg.solve(system, fitted.mT)
    solution = Layers(head, bias, weight, -(weight @ center.mT)[..., 0])
    return solution, (~active).sum(dim=1)


def least_squares(inputs: Tensor, targets: Tensor, start: Tensor) -> Tensor:
    """Solve inputs (K, N, D) @ map = targets (K, N, C) for the least-squares map (K, D, C) closest to start.

    In WEAK directions of the inputs the map keeps its start.
    """
    values, basis = torch.linalg.eigh(inputs.mT @ inputs)
    strong = values > WEAK**2 * values[:, -1:]
    inverse = torch.where(strong, 1 / values, 0.0)[..., None]
    for _ in range(2):  # the second pass recovers digits that squaring the inputs lost
        residual = inputs.mT @ (targets - inputs @ start)
        start = start + basis @ (inverse * (basis.mT @ residual))
    return start


def unshrink(layers: Layers, penalty: Penalty) -> Tensor:
    """Compute B = A (W Wᵀ)⁻¹ W L (K, C, D), the map whose optimal features Wᵀ A⁻¹ B u the layers give.

    With W L instead, the penalties would shrink B twice in WEAK directions.
    """
    values, basis = torch.linalg.eigh(layers.head @ layers.head.mT)
    gain = (values + penalty.features) / values.clamp(min=NEGLIGIBLE * penalty.features)
    return (basis * gain[:, None]) @ basis.mT @ layers.head @ layers.layer_weight


def closest_head(broadcast: Tensor, factor: Tensor) -> Tensor:
    """Find the head U (K, C, P) with U Uᵀ = factor factorᵀ closest to the broadcast, eq. (8)."""
    left, _, right = torch.linalg.svd(factor.mT @ broadcast, full_matrices=False)
    return factor @ left @ right


def recenter(layers: Layers, mean: Tensor) -> Layers:
    """Move the mean feature (K, P) into the head's bias; predictions stay the same."""
    bias = layers.bias + multiply(layers.head, mean)
    return Layers(layers.head, bias, layers.layer_weight, layers.layer_bias - mean)


def multiply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply matrices (K, C, P) by vectors (K, P): (K, C)."""
    return (matrices @ vectors[..., None])[..., 0]


def feature_offset(head: Tensor, distance: Tensor, penalty: Penalty) -> Tensor:
    """Compute Wᵀ A⁻¹ d_m, the offset of centered features: head (K, C, P), distance (K, C) -> (K, P)."""
    system = head @ head.mT + penalty.features * torch.eye(head.shape[1]).to(head)
    return multiply(head.mT, torch.linalg.solve(system, distance[..., None])[..., 0])
