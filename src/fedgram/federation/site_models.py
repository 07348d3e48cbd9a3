"""Models that sites predict with: best round, moment heads with site effects, mixtures with local models.

Everything is chosen on validation rows. K = M R models, in client-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.federation.clients import Clients
from fedgram.federation.returns import PARAMETERS, Layers, multiply
from fedgram.nets.stack import ROWS_AT_ONCE, Tensors
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.theory.blend import BlendSums, find_limits, mix
from fedgram.theory.moment_head import FeatureSums, LinearHead
from fedgram.theory.own_heads import OwnHeads, fit_own_heads
from fedgram.theory.site_effects import SiteHeads, fit_site_heads


def add_companions(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Append the local runs that blended runs mix with."""
    local = [Run(Procedure(local=True), run.seed) for run in runs if run.procedure.blended]
    return tuple(dict.fromkeys((*runs, *local)))


def find_companion(clients: Clients, run: int) -> int:
    """Return the index of the local run that a blended run mixes with."""
    return clients.runs.index(Run(Procedure(local=True), clients.runs[run].seed))


def check_validation(runs: Sequence[Run], has_validation: bool) -> None:
    """Reject procedures that choose strengths on validation rows if there are none."""
    for run in runs:
        if run.procedure.needs_validation and not has_validation:
            raise InputError(
                f"'{run.procedure.name}' chooses strengths on validation rows. Hold some out with "
                "--validation 0.2, or Problem.hold_out_validation(0.2).",
                field="validation",
            )


@dataclass(eq=False)
class BestModels:
    """The best models so far by validation error.

    tensors (K, ...) by name; error (K,): of the round, `inf` before the first; round (K,).
    """

    tensors: Tensors
    error: Tensor
    round: Tensor

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> BestModels:
        """Start with these models."""
        count = len(tensors["head.weight"])
        copies = {name: value.clone() for name, value in tensors.items()}
        error = torch.full((count,), float("inf"), dtype=torch.float64)
        return cls(copies, error, torch.zeros(count, dtype=torch.int64))

    def update(self, number: int, error: Tensor, tensors: Tensors) -> None:
        """Keep the models of this round whose error (K,) is less than before, and any of the first round."""
        better = (error < self.error) | (self.round == 0)
        self.error = torch.where(better, error, self.error)
        self.round = torch.where(better, number, self.round)
        models = better.nonzero()[:, 0].to(tensors["head.weight"].device)
        for name, value in tensors.items():
            self.tensors[name][models] = value[models].to(self.tensors[name].dtype)

    def state(self, prefix: str) -> Tensors:
        """Return all tensors by name."""
        named = {f"{prefix}.{name}": value for name, value in self.tensors.items()}
        return {**named, f"{prefix}_error": self.error, f"{prefix}_round": self.round}

    def load(self, state: Tensors, prefix: str) -> None:
        """Continue from a state."""
        for name, value in self.tensors.items():
            value.copy_(state[f"{prefix}.{name}"])
        self.error, self.round = state[f"{prefix}_error"].clone(), state[f"{prefix}_round"].clone()


class ChosenModels:
    """Models of the best round of every run, with solved heads and shares once training has ended.

    Sites of a local run choose their own round and the ridge of their own head. All others share the round
    with the least error over the validation rows of all sites; so do local models that blended runs mix with,
    since a round chosen on a few rows of one site looks better than it is.

    With `keeps_trained`, `trained` has the round that is best with heads as trained. For a run with moment
    heads at the end, these are the models of FedAvg, which trains the same networks.
    """

    def __init__(self, clients: Clients, *, keeps_trained: bool = False) -> None:
        self.clients = clients
        self.best = BestModels.from_tensors(clients.stack.tensors)
        self.trained = BestModels.from_tensors(clients.stack.tensors) if keeps_trained else None
        self.blended = any(run.procedure.blended for run in clients.runs)
        self.common = BestModels.from_tensors(clients.stack.tensors) if self.blended else self.best

    def update(self, number: int, tensors: Tensors) -> Tensor:
        """Compare the models of a round (K, ...) with the best so far; return diverged models (K,).

        A model diverged if its error on validation rows is infinite.
        """
        squares = self._squared_errors(tensors)
        own, common = self._mean_errors(number, squares)
        self.best.update(number, own, tensors)
        if self.blended:
            self.common.update(number, common, tensors)
        if self.trained:
            _, common = self._mean_errors(number, self._with_trained_heads(squares, tensors))
            self.trained.update(number, common, tensors)
        return torch.from_numpy(np.isinf(squares).reshape(-1))

    def _squared_errors(self, tensors: Tensors) -> Array:
        """Return the squared errors (M, R) of sites on their validation rows; infinite if not finite."""
        clients, by_run = self.clients, []
        for r, run in enumerate(clients.runs):
            models = clients.of_run(tensors, r)
            if run.procedure.moment_head:
                squares = fit_heads(clients, models, r, deviations=False).validation_error
                by_run.append(infinite_unless_finite(squares / clients.data.mean.shape[1]))
            else:
                by_run.append(squared_errors(clients, models, r))
        return np.stack(by_run, axis=1)

    def _with_trained_heads(self, squares: Array, tensors: Tensors) -> Array:
        """Replace the squared errors (M, R) of moment heads by those of the heads as trained."""
        columns = [
            squared_errors(self.clients, self.clients.of_run(tensors, r), r)
            if run.procedure.moment_head
            else squares[:, r]
            for r, run in enumerate(self.clients.runs)
        ]
        return np.stack(columns, axis=1)

    def _mean_errors(self, number: int, squares: Array) -> tuple[Tensor, Tensor]:
        """Return validation errors (K,): of each site alone for local runs, and over all sites."""
        rows = np.array([[len(y)] for _, y in self.clients.data.validation], dtype=np.float64)
        common = np.full_like(squares, squares.sum(axis=0) / rows.sum())
        # a site without validation rows keeps its last round
        alone = np.where(rows > 0, squares / np.maximum(rows, 1), -number)
        own = np.where([run.procedure.local for run in self.clients.runs], alone, common)
        return torch.from_numpy(own.reshape(-1)), torch.from_numpy(common.reshape(-1))

    def state(self) -> Tensors:
        """Return all tensors by name."""
        common = self.common.state("common") if self.blended else {}
        return {**self.best.state("best"), **common}

    def load(self, state: Tensors) -> None:
        """Continue from a state."""
        self.best.load(state, "best")
        if self.blended:
            self.common.load(state, "common")

    def finish(self, run: int) -> SiteModels:
        """Solve the heads and shares of a run."""
        clients, procedure = self.clients, self.clients.runs[run].procedure
        tensors = {name: each.clone() for name, each in clients.of_run(self.best.tensors, run).items()}
        rounds = self.best.round[run :: len(clients.runs)].tolist()
        chosen: dict[str, Any] = {"round": rounds if procedure.local else rounds[0]}
        if procedure.local:
            tensors = with_heads(tensors, fit_alone_heads(clients, tensors, run, common=False).sites)
        models, unseen = SiteModels(tensors, chosen=chosen), tensors
        if procedure.moment_head:
            heads = fit_heads(clients, tensors, run, deviations=True)
            shared = with_heads({name: each[:1] for name, each in tensors.items()}, heads.shared)
            models = SiteModels(
                with_heads(tensors, heads.sites),
                {name: each[0] for name, each in shared.items()},
                chosen=chosen | {"ridge": heads.ridge, **heads.strengths.document()},
            )
            unseen = with_heads(tensors, heads.unseen)
        return self._blend(models, unseen, run) if procedure.blended else models

    def _blend(self, models: SiteModels, unseen: Tensors, run: int) -> SiteModels:
        """Add the local models with solved heads, and their shares.

        Shares compare models on validation rows that neither has seen, so the compared ones have heads of
        training rows alone: heads that were fitted on these rows look better than they are. So do limits.
        """
        clients = self.clients
        companion = find_companion(clients, run)
        local = clients.of_run(self.common.tensors, companion)
        heads = fit_alone_heads(clients, local, companion, common=True)
        own = predict_part(clients, with_heads(local, heads.unseen), "validation", companion)
        sums = BlendSums.from_rows(
            [np.clip(f, *limits) for f, limits in zip(own, site_limits(clients, "train"), strict=True)],
            predict_part(clients, unseen, "validation", run),
            clients.data.target_arrays("validation"),
        )
        shares, limits = sums.shares(), site_limits(clients, "train", "validation")
        chosen = {**models.chosen, "local_ridge": float(heads.ratio[0]), "local_share": shares.tolist()}
        return replace(
            models, local=with_heads(local, heads.sites), shares=shares, limits=limits, chosen=chosen
        )


@dataclass(frozen=True, eq=False)
class SiteModels:
    """Final models of a run.

    tensors (M, ...) by name: each site's; shared (...): with the shared moment head, for sites that did not
    take part; local (M, ...), shares (M,) and limits (M, 2, C): second model of a blended run, its share, and
    the least and largest of its predictions; chosen: rounds, strengths and shares, for the record.
    """

    tensors: Tensors
    shared: Tensors = field(default_factory=dict)
    local: Tensors = field(default_factory=dict)
    shares: Array = field(default_factory=lambda: np.zeros(0))
    limits: Array = field(default_factory=lambda: np.zeros((0, 2, 0)))
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def to_arrays(self, dtype: torch.dtype) -> dict[str, Array]:
        """Convert to arrays by name, for a file; floating-point values get this dtype."""
        named = {
            **self.tensors,
            **{f"shared.{name}": value for name, value in self.shared.items()},
            **{f"local.{name}": value for name, value in self.local.items()},
        }
        arrays = {
            name: (value.to(dtype) if value.is_floating_point() else value).cpu().numpy()
            for name, value in named.items()
        }
        return arrays | ({"local_share": self.shares, "local_limits": self.limits} if self.local else {})


def with_heads(tensors: Tensors, head: LinearHead) -> Tensors:
    """Return models (M, ...) whose last layers are heads on backbone outputs."""
    return {**tensors, **to_layers(head, Layers.from_parameters(tensors)).to_parameters()}


def iterate_outputs(
    clients: Clients, tensors: Tensors, part: str
) -> Iterator[tuple[list[int], slice, Tensor]]:
    """Compute backbone outputs of many sites at once, each with its own model (M, ...).

    Yield the sites, their range of rows, and outputs u (sites, rows, D); rows beyond a site's last are
    padding. part is 'train', 'validation' or 'test'.
    """
    rows, stack = getattr(clients.data, part), clients.stack
    counts = [len(targets) for _, targets in rows]
    for start in range(0, max(counts), ROWS_AT_ONCE):
        at = slice(start, min(start + ROWS_AT_ONCE, max(counts)))
        sites = [m for m, count in enumerate(counts) if count > start]
        for first in range(0, len(sites), stack.models_at_once):
            some = sites[first : first + stack.models_at_once]
            inputs = pad_sequence([rows[m][0][at] for m in some], batch_first=True)
            models = (
                tensors if len(some) == len(rows) else {name: each[some] for name, each in tensors.items()}
            )
            yield some, at, stack.outputs(models, inputs)


def feature_sums(clients: Clients, tensors: Tensors, part: str, run: int) -> FeatureSums:
    """Sum backbone outputs u and targets over each site's rows, in double precision."""
    rows, shift = getattr(clients.data, part), clients.shift[run :: len(clients.runs)]
    counts = torch.tensor([len(targets) for _, targets in rows], device=shift.device)
    width, targets = tensors["feature.weight"].shape[-1], shift.shape[-1]
    shapes = ((width,), (targets,), (width, width), (width, targets), (targets, targets))
    sums = [torch.zeros(len(rows), *shape, dtype=torch.float64, device=shift.device) for shape in shapes]
    for sites, at, outputs in iterate_outputs(clients, tensors, part):
        position = torch.arange(at.start, at.start + outputs.shape[1], device=shift.device)
        mask = (position < counts[sites][:, None])[..., None]
        u = outputs.double() * mask
        y = pad_sequence([rows[m][1][at] for m in sites], batch_first=True) - shift[sites][:, None]
        y = y * mask
        for total, part_sum in zip(sums, (u.sum(1), y.sum(1), u.mT @ u, u.mT @ y, y.mT @ y), strict=True):
            total[sites] += part_sum
    return FeatureSums(*(each.cpu().numpy() for each in (counts.double(), *sums)))


def fit_heads(clients: Clients, tensors: Tensors, run: int, *, deviations: bool) -> SiteHeads:
    """Solve the heads of a run's sites on the features of its models, (M, ...) by name."""
    training = feature_sums(clients, tensors, "train", run)
    validation = feature_sums(clients, tensors, "validation", run)
    effects = clients.runs[run].procedure.site_effects
    return fit_site_heads(
        training, validation, effects=effects, deviations=deviations, toward=trained_map(tensors)
    )


def fit_alone_heads(clients: Clients, tensors: Tensors, run: int, *, common: bool) -> OwnHeads:
    """Solve the heads of models that sites train alone, (M, ...) by name."""
    parts = (feature_sums(clients, tensors, part, run) for part in ("train", "validation"))
    return fit_own_heads(*parts, common=common)


def trained_map(tensors: Tensors) -> Array:
    """Return the map (C, D) from backbone outputs to predictions; models of a full-model run share it."""
    layers = Layers.from_parameters({name: tensors[name][:1] for name in PARAMETERS})
    return layers.slope[0].cpu().numpy()


def to_layers(head: LinearHead, like: Layers) -> Layers:
    """Write heads u -> B u + b of K models as last layers: W = [I 0], h = [B u; 0]."""
    weight, bias = (torch.as_tensor(each).to(like.head) for each in (head.weight, head.bias))
    targets = weight.shape[-2]
    unit, layer = torch.zeros_like(like.head), torch.zeros_like(like.layer_weight)
    unit[:, :, :targets] = torch.eye(targets).to(unit)
    layer[:, :targets] = weight
    return Layers(unit, bias.expand(len(layer), -1), layer, torch.zeros_like(like.layer_bias))


def absorb(layers: Layers, head: LinearHead) -> Layers:
    """Move feature layers and biases of K models least, so that they predict B u + b with the same W."""
    weight, bias = (torch.as_tensor(each).to(layers.head) for each in (head.weight, head.bias))
    missing = weight - layers.slope
    moved = layers.layer_weight + torch.linalg.pinv(layers.head) @ missing
    return replace(layers, layer_weight=moved, bias=bias - multiply(layers.head, layers.layer_bias))


def predict_part(clients: Clients, tensors: Tensors, part: str, run: int) -> list[Array]:
    """Predict the rows of every site with its own model of a run, (M, ...) by name: arrays (N_m, C)."""
    layers, shift = Layers.from_parameters(tensors), clients.shift[run :: len(clients.runs)]
    predicted = [torch.empty_like(targets) for _, targets in getattr(clients.data, part)]
    for sites, at, outputs in iterate_outputs(clients, tensors, part):
        own = layers.select(torch.tensor(sites))
        values = own.features(outputs) @ own.head.mT + (own.bias + shift[sites])[:, None]
        for m, value in zip(sites, values, strict=True):
            predicted[m][at] = value[: len(predicted[m][at])]
    return [each.cpu().numpy() for each in predicted]


def predict_sites(clients: Clients, models: SiteModels, part: str, run: int) -> list[Array]:
    """Predict the rows of every site with the final models of a run: arrays (N_m, C)."""
    predicted = predict_part(clients, models.tensors, part, run)
    if not models.local:
        return predicted
    local = predict_part(clients, models.local, part, find_companion(clients, run))
    parts = zip(local, predicted, models.shares.tolist(), models.limits, strict=True)
    return [mix(own, shared, share, limits) for own, shared, share, limits in parts]


def site_limits(clients: Clients, *parts: str) -> Array:
    """Limits (M, 2, C) of networks that sites train alone on these parts of their rows."""
    by_site = zip(*(clients.data.target_arrays(part) for part in parts), strict=True)
    return np.stack([find_limits(np.concatenate(targets)) for targets in by_site])


def mean_squares(predicted: list[Array], targets: list[Array]) -> Array:
    """Mean squared error over rows and targets of each site, (M,); NaN without rows."""
    pairs = zip(predicted, targets, strict=True)
    return np.array([((f - y) ** 2).mean() if len(y) else np.nan for f, y in pairs])


def squared_errors(clients: Clients, tensors: Tensors, run: int) -> Array:
    """Squared error of each site on its validation rows, summed over rows and averaged over targets, (M,).

    It is infinite if a prediction is not finite.
    """
    predicted = predict_part(clients, tensors, "validation", run)
    pairs = zip(predicted, clients.data.target_arrays("validation"), strict=True)
    return infinite_unless_finite(np.array([((f - y) ** 2).sum() / y.shape[1] for f, y in pairs]))


def infinite_unless_finite(errors: Array) -> Array:
    """Replace NaN by infinity: no round with such an error is better than another."""
    return np.where(np.isfinite(errors), errors, np.inf)
