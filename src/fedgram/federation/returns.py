"""Layers that clients return: as trained, aligned, or solved.

The batched PyTorch version of `fedgram.theory.select`, in double precision. Tests compare the two. K models
are computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fedgram.federation.ridge import fit_ridges
from fedgram.nets.stack import Tensors
from fedgram.runs.procedure import Procedure
from fedgram.theory.penalty import Penalty

Rows = tuple[Tensor, Tensor]

# Directions of u below this fraction of the strongest one keep the trained map. Least squares would fit the
# residual of every row there with a map too large to generalize.
WEAK = 1e-2

# Eigenvalues of W Wᵀ below this fraction of λ_H: the head ignores that direction of the targets.
NEGLIGIBLE = 1e-2

# Backbone outputs that solved returns copy to double precision together: 1 GiB.
NUMBERS_AT_ONCE = 2**27

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
        """Copy the last layers from parameters by name."""
        return cls(*(parameters[name].to(torch.float64, copy=True) for name in PARAMETERS))

    def to_parameters(self) -> Tensors:
        """Return the layers as parameters by name."""
        return dict(zip(PARAMETERS, vars(self).values(), strict=True))

    def select(self, models: slice | Tensor) -> Layers:
        """Return the layers of some models: a range, or indices (k,)."""
        return Layers(*(value[models] for value in vars(self).values()))

    def put(self, models: Tensor, new: Layers) -> Layers:
        """Replace the layers of the models with indices (k,)."""
        pairs = zip(vars(self).values(), vars(new).values(), strict=True)
        return Layers(*(old.index_copy(0, models, value) for old, value in pairs))

    def where(self, models: Tensor, others: Layers) -> Layers:
        """Keep the layers of the models of a mask (K,), and take all others from other layers."""
        pairs = zip(vars(self).values(), vars(others).values(), strict=True)
        return Layers(
            *(torch.where(models.view(-1, *[1] * (own.ndim - 1)), own, other) for own, other in pairs)
        )

    @property
    def slope(self) -> Tensor:
        """W L, the map from backbone outputs u to predictions, (K, C, D)."""
        return self.head @ self.layer_weight

    def features(self, outputs: Tensor) -> Tensor:
        """Compute features h from backbone outputs u: (K, N, D) -> (K, N, P)."""
        return outputs.double() @ self.layer_weight.mT + self.layer_bias[:, None]

    def center(self, mean: Tensor) -> Tensor:
        """Compute the mean feature from the mean backbone output: (K, D) -> (K, P)."""
        return multiply(self.layer_weight, mean) + self.layer_bias


@dataclass(frozen=True, eq=False)
class ReturnedLayers:
    """Layers that K models return and predict with, and layers that they continue training with.

    center (K, P): mean features before a procedure with the offset removes them; clipped (K,): directions
    that a solved return dropped.
    """

    returned: Layers
    resume_from: Layers
    center: Tensor
    clipped: Tensor


def return_layers(
    procedures: Sequence[Procedure],
    layers: Layers,
    rows: Mapping[int, Rows],
    mean: Tensor,
    broadcast: Tensor,
    deficit: Tensor,
    penalty: Penalty,
) -> ReturnedLayers:
    """Apply the return rules of K procedures to trained layers.

    rows are backbone outputs u (N, D) and targets (N, C) of training rows by model; solved returns need them.
    mean (K, D) of these outputs; the bias rule 'offset' needs it. Training continues from trained layers, not
    from solved ones: a map that fits every row reacts to every change of the backbone.
    """

    returned = resume_from = layers
    if rotated := [k for k, each in enumerate(procedures) if each.returned != "trained"]:
        at = torch.tensor(rotated, device=mean.device)
        returned = resume_from = layers.put(at, align_layers(layers.select(at), broadcast[at]))
    clipped = torch.zeros(len(procedures), dtype=torch.int64, device=mean.device)
    solved = [k for k, each in enumerate(procedures) if each.returned == "solved"]
    for some in _group_by_rows(solved, rows):
        at = torch.tensor(some, device=mean.device)
        outputs, targets = (torch.stack(each) for each in zip(*(rows[k] for k in some), strict=True))
        solution, clipped[at] = shrink_layers(
            resume_from.select(at), outputs.double(), targets, broadcast[at], deficit[at], penalty
        )
        returned = returned.put(at, solution)
    center = returned.center(mean)
    has_offset = torch.tensor([[each.bias == "offset"] for each in procedures], device=mean.device)
    return ReturnedLayers(
        returned=recenter(returned, torch.where(has_offset, center, 0.0)),
        resume_from=recenter(resume_from, torch.where(has_offset, resume_from.center(mean), 0.0)),
        center=center,
        clipped=clipped,
    )


def _group_by_rows(models: list[int], rows: Mapping[int, Rows]) -> Iterator[list[int]]:
    """Group models with equally many rows, at most NUMBERS_AT_ONCE outputs in a group."""

    def shape(k: int) -> tuple[int, ...]:
        return tuple(rows[k][0].shape)

    for (count, width), same in groupby(sorted(models, key=shape), shape):
        found, size = list(same), max(1, NUMBERS_AT_ONCE // (count * width))
        yield from (found[k : k + size] for k in range(0, len(found), size))


def align_layers(layers: Layers, broadcast: Tensor) -> Layers:
    """Rotate features by the orthogonal Q (P, P) that moves W Q closest to the broadcast (K, C, P).

    Q is unique only on the row spaces of the heads, where it is the polar factor of Wᵀ W_t. The completion
    maps one orthogonal complement to the other (Appendix F.5). Householder reflections apply Q without
    computing it.
    """
    rows = broadcast.shape[1]
    ours, theirs = torch.geqrf(layers.head.mT), torch.geqrf(broadcast.mT)
    ours_r, theirs_r = (each[0][:, :rows].triu() for each in (ours, theirs))
    left, _, right = torch.linalg.svd(ours_r @ theirs_r.mT)
    width = layers.layer_weight.shape[2]
    together = torch.cat([layers.layer_weight, layers.layer_bias[..., None], layers.head.mT], dim=2)
    turned = _reflect(*ours, together, range(rows))
    turned = torch.cat([(left @ right).mT @ turned[:, :rows], turned[:, rows:]], dim=1)
    turned = _reflect(*theirs, turned, range(rows - 1, -1, -1))
    return Layers(turned[..., width + 1 :].mT, layers.bias, turned[..., :width], turned[..., width])


def _reflect(packed: Tensor, scales: Tensor, values: Tensor, order: Iterable[int]) -> Tensor:
    """Apply the Householder reflections I - τ v vᵀ of `torch.geqrf` to values (K, P, D), one after another.

    As batched products, these do not take one model at a time like `torch.ormqr`.
    """
    vectors = packed.tril(-1) + torch.eye(*packed.shape[1:], dtype=packed.dtype, device=packed.device)
    for j in order:
        vector = vectors[..., j : j + 1]
        values = values - (scales[:, j, None, None] * vector) @ (vector.mT @ values)
    return values


def shrink_layers(
    aligned: Layers, outputs: Tensor, targets: Tensor, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> tuple[Layers, Tensor]:
    """Solve for the last layers as far as the rows are free of noise, and keep aligned ones otherwise.

    The map B is a ridge map, chosen by leave-one-out. The head moves from the aligned one to φ(Cov(B u) +
    deficit) by the share of B that is signal. Features are the best response Wᵀ A⁻¹ (B (u - ū) + m) to the
    broadcast, which the next average is close to; the constants m and b stay as trained. Rows without noise
    have the exact solution of `solve_for_map`. Also return the number of dropped directions (K,).

    Shapes: outputs u (K, N, D), targets (K, N, C), broadcast (K, C, P), deficit γ (Σ_cen - Σ_m) (K, C, C).
    """
    trained, center = unshrink(aligned.head, aligned.layer_weight, penalty), outputs.mean(dim=1)
    inputs, centered = outputs - center[:, None], targets - targets.mean(dim=1, keepdim=True)
    ridge = fit_ridges(inputs, centered, trained.mT)
    fitted, exact = ridge.weight, ridge.is_exact.nonzero()[:, 0]
    if len(exact):
        fitted[exact] = least_squares(inputs[exact], centered[exact], trained.mT[exact])
    solution, clipped = solve_for_map(fitted, outputs, targets, broadcast, deficit, penalty)
    head = torch.lerp(aligned.head, solution.head, ridge.share[:, None, None])
    constant = unshrink(aligned.head, aligned.center(center)[..., None], penalty)[..., 0]
    respond = torch.linalg.solve(regularized_gram(broadcast, penalty), broadcast).mT
    weight = respond @ fitted.mT
    shrunk = Layers(head, aligned.bias, weight, multiply(respond, constant) - multiply(weight, center))
    return solution.where(ridge.is_exact, shrunk), clipped


def solve_for_map(
    fitted: Tensor, outputs: Tensor, targets: Tensor, broadcast: Tensor, deficit: Tensor, penalty: Penalty
) -> tuple[Layers, Tensor]:
    """Minimize each client's loss over its last layers; also return the number of dropped directions (K,).

    With B (K, D, C) the least-squares map from centered u to centered targets and Ŝ = Cov(B u), the loss is
    F(W; Ŝ + deficit) up to a constant. So W Wᵀ = φ(Ŝ + deficit), and h = Wᵀ A⁻¹ B (u - ū).
    """
    center, bias = outputs.mean(dim=1, keepdim=True), targets.mean(dim=1)
    values = (outputs - center) @ fitted
    variance, basis = torch.linalg.eigh(values.mT @ values / targets.shape[1] + deficit)
    active = variance > penalty.threshold
    gain = penalty.scale * variance.clamp(min=0.0).sqrt() - penalty.features  # φ, eq. (7)
    head = closest_head(broadcast, basis * torch.where(active, gain, 0.0).clamp(min=0.0).sqrt()[:, None])
    weight = head.mT @ torch.linalg.solve(regularized_gram(head, penalty), fitted.mT)
    return Layers(head, bias, weight, -(weight @ center.mT)[..., 0]), (~active).sum(dim=1)


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


def unshrink(head: Tensor, layer_weight: Tensor, penalty: Penalty) -> Tensor:
    """Compute B = A (W Wᵀ)⁻¹ W L (K, C, D), the map whose optimal features Wᵀ A⁻¹ B u the layers give.

    With W L instead, the penalties would shrink B twice in WEAK directions.
    """
    values, basis = torch.linalg.eigh(head @ head.mT)
    gain = (values + penalty.features) / values.clamp(min=NEGLIGIBLE * penalty.features)
    return (basis * gain[:, None]) @ basis.mT @ head @ layer_weight


def closest_head(broadcast: Tensor, factor: Tensor) -> Tensor:
    """Find the head U (K, C, P) with U Uᵀ = factor factorᵀ closest to the broadcast, eq. (8)."""
    basis, triangle = torch.linalg.qr((factor.mT @ broadcast).mT)  # SVDs of C x C matrices are batched
    left, _, right = torch.linalg.svd(triangle.mT)
    return factor @ left @ right @ basis.mT


def regularized_gram(head: Tensor, penalty: Penalty) -> Tensor:
    """Compute A = W Wᵀ + λ_H I (K, C, C)."""
    unit = torch.eye(head.shape[1], dtype=head.dtype, device=head.device)
    return head @ head.mT + penalty.features * unit


def recenter(layers: Layers, mean: Tensor) -> Layers:
    """Move the mean feature (K, P) into the head's bias; predictions stay the same."""
    bias = layers.bias + multiply(layers.head, mean)
    return Layers(layers.head, bias, layers.layer_weight, layers.layer_bias - mean)


def multiply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply matrices (K, C, P) by vectors (K, P): (K, C)."""
    return (matrices @ vectors[..., None])[..., 0]


def feature_offset(head: Tensor, distance: Tensor, penalty: Penalty) -> Tensor:
    """Compute Wᵀ A⁻¹ d_m, the offset of centered features: head (K, C, P), distance (K, C) -> (K, P)."""
    system = regularized_gram(head, penalty)
    return multiply(head.mT, torch.linalg.solve(system, distance[..., None])[..., 0])
