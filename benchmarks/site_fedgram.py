"""fedgram's own rows of the natural-sites benchmark, with the network that `auto` chooses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedgram._util.errors import InputError
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.federation.federation import Federation
from fedgram.federation.returns import Layers
from fedgram.federation.site_models import (
    BestModels,
    ChosenModels,
    SiteModels,
    find_companion,
    predict_sites,
)
from fedgram.nets.model import draw
from fedgram.nets.stack import Tensors
from fedgram.runs.advice import AUTO
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.training import site_learning
from fedgram.training.site_learning import Learned, Plan, choose_plan, learn, plans
from site_problems import SiteProblem
from site_results import ALONE, ALONE_TRAINED, FEDAVG_SMALL, OWN_LAST, Result

HEADS = {"shared head": "ordinary", "shared head, proximal": "proximal"}

SINGLE, DOUBLE = 4, 8  # bytes

Rows = Mapping[str, Result]


class WatchedFederation(Federation):
    """The training of `auto`, which also keeps the models of FedAvg and of FedAvg's own last models.

    The last are the networks that sites have trained before the server averages them, each in its own best
    round on validation rows.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        words = ("full-model", "local")  # sites of a local run choose their own round
        self.watched = copy(self.clients)
        self.watched.runs = tuple(Run(Procedure.parse(each), self.runs[0].seed) for each in words)
        self.watched.shift = self.clients.shift[:: len(self.runs)].repeat_interleave(len(words), dim=0)
        self.own, self.kept = self.clients.stack.tensors, ChosenModels(self.watched)
        self.kept.best = BestModels.from_tensors(self._watched_models())

    def rounds(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Train as usual; compare the models after each round."""
        for records in super().rounds(*arguments, **options):
            self.kept.update(self.finished, self._watched_models())
            yield records

    def watched_error(self, run: int) -> float:
        """Test error of FedAvg (0) or of its own last models (1), with the heads as they were trained."""
        models = SiteModels(self.watched.of_run(self.kept.best.tensors, run))
        return _test_error(self, predict_sites(self.watched, models, "test", run))

    def _average_backbones(self, layers: Layers) -> Layers:
        self.own = {name: value.clone() for name, value in self.clients.stack.tensors.items()}
        return super()._average_backbones(layers)

    def _watched_models(self) -> Tensors:
        """Return the shared and the own model of every site, (2 M, ...) by name."""
        shared, own = (self.clients.of_run(each, 0) for each in (self._current_models(), self.own))
        return {
            name: torch.stack([value, own[name].to(value.dtype)], dim=1).flatten(0, 1)
            for name, value in shared.items()
        }


def auto_rows(problem: SiteProblem, seed: int, network: str | None = None, plan: Plan | None = None) -> Rows:
    """Train `auto`, which chooses the network without a plan, and read the rows that share its training.

    Their seconds are those of the whole training, with the smaller networks that were tried.
    """
    rows, started = to_problem(problem), time.perf_counter()
    with patch.object(site_learning, "Federation", WatchedFederation):
        learned = learn(rows, plan, [AUTO], seed) if plan else choose_plan(rows, AUTO, seed)
    federation, models = learned.federation, learned.models(AUTO)
    assert isinstance(federation, WatchedFederation)
    unmixed = replace(models, local={})
    count = len(federation.clients.data)
    shared = replace(
        unmixed, tensors={name: each.expand(count, *each.shape) for name, each in models.shared.items()}
    )
    errors = {
        ALONE: _error(learned, "local", learned.models("local")),
        ALONE_TRAINED: _error(learned, "local", SiteModels(_trained_alone(federation))),
        "FedAvg": federation.watched_error(0),
        OWN_LAST: federation.watched_error(1),
        "moment head": _error(learned, AUTO, shared),
        "moment head, site effects": _error(learned, AUTO, unmixed),
        "auto": _error(learned, AUTO, models),
    }
    seconds, chosen = time.perf_counter() - started, str(learned.plan.backbone)
    return {
        name: Result(error, _bytes_sent(learned, name), seconds, chosen) for name, error in errors.items()
    }


def _trained_alone(federation: Federation) -> Tensors:
    """Return the networks that sites train alone, with the heads as they were trained."""
    assert federation.chosen is not None  # site problems have validation rows
    return federation.clients.of_run(federation.chosen.best.tensors, find_companion(federation.clients, 0))


def head_rows(problem: SiteProblem, seed: int, network: str | None) -> Rows:
    """Train with shared heads and private backbones, both rows together."""
    rows, started = to_problem(problem), time.perf_counter()
    learned = learn(rows, plan_of(network), list(HEADS.values()), seed)
    errors = {
        name: _error(learned, procedure, learned.models(procedure)) for name, procedure in HEADS.items()
    }
    seconds = (time.perf_counter() - started) / len(HEADS)
    return {
        name: Result(error, _bytes_sent(learned, name), seconds, network) for name, error in errors.items()
    }


def small_fedavg_row(problem: SiteProblem, seed: int, network: str | None) -> Rows:
    """Train FedAvg with the network of `site_flower`, to compare the two."""
    started, plan = time.perf_counter(), replace(plans()[0], backbone="resmlp-small")
    learned = learn(to_problem(problem), plan, ["full-model"], seed)
    error = _error(learned, "full-model", learned.models("full-model"))
    seconds, sent = time.perf_counter() - started, _bytes_sent(learned, FEDAVG_SMALL)
    return {FEDAVG_SMALL: Result(error, sent, seconds, str(plan.backbone))}


def fedprox_row(problem: SiteProblem, seed: int, network: str | None) -> Rows:
    """Train FedProx in plain PyTorch: the proximal term covers all parameters, as its authors define it."""
    from site_flower import FlowerConfig, mean_squared_error, train_round

    plan, started = plan_of(network), time.perf_counter()
    config, features = FlowerConfig(train=plan.config), plan.config.features
    rows = next(iter(problem.sites.values())).train
    inputs, targets = torch.zeros(2, rows.inputs.shape[1]), rows.targets.shape[1]
    shared, best = draw(plan.backbone, inputs, features, targets, seed, None), (np.inf, np.inf)
    counts = {name: len(site.train.targets) for name, site in problem.sites.items()}
    torch.set_num_threads(1)
    for number in range(1, plan.config.rounds + 1):
        total = [torch.zeros_like(value) for value in shared.parameters()]
        for name, site in problem.sites.items():
            own = deepcopy(shared)
            train_round(own, site.train, name, seed, number, config, config.proximal)
            for part, value in zip(total, own.parameters(), strict=True):
                part.add_(value.detach(), alpha=counts[name] / sum(counts.values()))
        torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(total), shared.parameters())
        errors = (mean_squared_error(shared, problem, part) for part in ("validation", "test"))
        best = min(best, tuple(errors))
    sent = float(SINGLE * plan.config.rounds * sum(value.numel() for value in shared.parameters()))
    return {"FedProx": Result(best[1], sent, time.perf_counter() - started, network)}


def plan_of(network: str | None) -> Plan:
    """Return the plan of the network that `auto` chose."""
    if network is None:
        raise InputError("This row uses the network that 'auto' chooses. Run --rows auto first.")
    return next(plan for plan in plans() if plan.backbone == network)


def to_problem(problem: SiteProblem) -> Problem:
    def part(name: str) -> dict[str, Split]:
        parts = {site: getattr(each, name) for site, each in problem.sites.items()}
        return {site: Split(each.inputs, each.targets) for site, each in parts.items()}

    return Problem(problem.name, problem.kind, part("train"), part("test"), validation=part("validation"))


def _error(learned: Learned, procedure: str, models: SiteModels) -> float:
    return _test_error(learned.federation, learned.predict(procedure, models, "test"))


def _test_error(federation: Federation, predicted: list[np.ndarray]) -> float:
    targets = [each.cpu().numpy() for _, each in federation.clients.data.test]
    return float(np.square(np.concatenate(predicted) - np.concatenate(targets)).mean())


def _bytes_sent(learned: Learned, name: str) -> float:
    """Return the bytes that a site sends: layers, and sums of features for moment heads, in every round."""
    if name in (ALONE, ALONE_TRAINED):
        return 0.0
    parameters = learned.federation.clients.stack.parameters
    sizes = {key: value[0].numel() for key, value in parameters.items()}
    width, targets = parameters["feature.weight"].shape[-1], parameters["head.bias"].shape[-1]
    shared = sum(size for key, size in sizes.items() if key.startswith("head.") or name not in HEADS)
    size = 1 + width + targets
    sums = size * (size + 1) // 2 if "moment" in name or name == "auto" else 0
    return float(learned.plan.config.rounds * (SINGLE * shared + 2 * DOUBLE * sums))
