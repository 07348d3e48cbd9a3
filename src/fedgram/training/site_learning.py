"""Train models for natural sites: the size and budget of the network are chosen on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.federation.federation import Federation
from fedgram.federation.site_models import SiteModels
from fedgram.nets.model import Backbone, draw_example
from fedgram.runs.advice import AUTO, LABELS, Alone
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty
from fedgram.training import devices

# With more training rows only the smallest plan is tried: on Beijing (21,600 rows) a ResMLP of width 128
# takes three times as long as one of 64 and lowers the test error by 0.4 %.
LARGE = 10_000

# With more training rows, plans have larger minibatches and fewer rounds. Smaller tables keep the results of
# docs/benchmarks.md, which also compares both plans on larger ones.
MANY = 25_000
LARGE_BATCH = 128

# Learning rates grow with the minibatches. On hourly weather (14,723 rows) the test error of 30 rounds fell
# from 0.0725 to 0.0665, in 0.6 of the time.
LARGE_RATE = 3.0

# A pooled network has as large minibatches as leave so many steps, at most LARGEST_BATCH: on a CPU a step of
# one model takes about as long with 256 rows as with 64.
POOLED_STEPS = 6_000
LARGEST_BATCH = 2_048

# A larger network must lower the validation error by this factor to count: it takes longer to train.
WORTHWHILE = 0.99

# The next size is tried only after a gain of this factor. Measured with ResMLPs on seven problems: where
# width 128 gained less than 10 % over 64, width 256 gained less than 1 % over 128.
PROMISING = 0.9


@dataclass(frozen=True)
class Plan:
    """A network and its training.

    Parameters
    ----------
    backbone : str or torch.nn.Module
        Name of a backbone, or a module of your own.
    config : TrainConfig
        Rounds, epochs and optimizer.

    Examples
    --------
    >>> from fedgram import Plan
    >>> plan = Plan.from_backbone("wide-deep-64", rounds=10)
    >>> plan.config.rounds, plan.config.epochs
    (10, 2)
    """

    backbone: Backbone
    config: TrainConfig

    @classmethod
    def from_backbone(
        cls,
        backbone: Backbone | None = None,
        rounds: int | None = None,
        epochs: int | None = None,
        training_rows: int = 0,
    ) -> Plan:
        """Return the tried plan of this backbone, else the smallest's budget; override rounds and epochs.

        Without a backbone, the smallest one that is tried is used. Tried plans depend on the number of
        training rows of all sites.
        """
        tried = plans(training_rows if backbone is None or isinstance(backbone, str) else 0)
        plan = next((each for each in tried if each.backbone == backbone), tried[0])
        given = {"rounds": rounds, "epochs": epochs}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return cls(plan.backbone if backbone is None else backbone, replace(plan.config, **changes))


def plans(training_rows: int = 0) -> tuple[Plan, ...]:
    """Return the plans that are tried on tables of this size, the smallest first.

    Penalties are negligible: validation rows choose the round and the strengths instead. Above MANY training
    rows, rounds fall with their fourth root.
    """
    small = TrainConfig(
        rounds=30, epochs=2, batch=64, features=64, penalty=Penalty(1e-6, 1e-6), learning_rate=2e-3,
        final_learning_rate=1e-5, precision="fp32", decay="run",
    )  # fmt: skip
    tried = (
        Plan("wide-deep-64", small),
        Plan("wide-deep-128", replace(small, rounds=60, features=128)),
        Plan("wide-deep-256", replace(small, rounds=60, features=256, learning_rate=1e-3)),
    )
    return tuple(Plan(each.backbone, _fit_to_rows(each.config, training_rows)) for each in tried)


def _fit_to_rows(config: TrainConfig, training_rows: int) -> TrainConfig:
    if training_rows <= MANY:
        return config
    return replace(
        config,
        rounds=ceil(config.rounds * (MANY / training_rows) ** 0.25),
        batch=LARGE_BATCH,
        learning_rate=LARGE_RATE * config.learning_rate,
    )


def pooled_config(config: TrainConfig, training_rows: int) -> TrainConfig:
    """Return the configuration for one network on the training rows of all sites.

    Examples
    --------
    >>> config = plans(640_000)[0].config
    >>> config.rounds, config.batch, pooled_config(config, 640_000).batch
    (14, 128, 2048)
    """
    if training_rows <= MANY:
        return config
    rows = training_rows * config.epochs * config.rounds // POOLED_STEPS
    return replace(config, batch=min(max(rows, config.batch), LARGEST_BATCH))


@dataclass(frozen=True, eq=False)
class Learned:
    """A trained federation with its plan."""

    federation: Federation
    plan: Plan

    def models(self, procedure: str) -> SiteModels:
        """Return the models of a procedure."""
        return self.federation.site_models(self._run(procedure))

    def predict(self, procedure: str, models: SiteModels, part: str) -> list[Array]:
        """Predict the rows of every site with a procedure's models: arrays (N_m, C)."""
        return self.federation.predict(self._run(procedure), models, part)

    def predict_alone(self, procedure: str) -> dict[Alone, list[Array]]:
        """Predict the test rows of every site of a blended run without the other sites, by method."""
        return self.federation.predict_alone(self._run(procedure))

    def predict_fedavg(self, procedure: str) -> list[Array]:
        """Predict the test rows of every site with FedAvg, whose networks a run with moment heads trains."""
        return self.federation.predict_trained(self._run(procedure))

    def validation_error(self, procedure: str) -> float:
        """Mean squared error over all validation rows, each site in its best round."""
        clients, chosen = self.federation.clients, self.federation.chosen
        assert chosen is not None  # site problems have validation rows
        errors = chosen.best.error[self.federation.runs.index(self._run(procedure)) :: len(clients.runs)]
        rows = torch.tensor([len(targets) for _, targets in clients.data.validation], dtype=errors.dtype)
        return float((errors * rows).sum() / rows.sum())

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about procedures that diverged, whose predictions mean little."""
        return tuple(
            f"Training of '{run.procedure.name}' diverged ({reason}), so its errors mean little. Look for "
            "extreme inputs, or lower the learning rate."
            for run, reason in self.federation.stopped.items()
        )

    def _run(self, procedure: str) -> Run:
        wanted = Procedure.parse(procedure)
        return next(run for run in self.federation.runs if run.procedure == wanted)


Progress = Callable[[str, float], None]
"""Called with what is trained and the fraction that is done."""


def learn(
    problem: Problem,
    plan: Plan,
    procedures: Sequence[str],
    seed: int = 0,
    device: str = "cpu",
    on_progress: Progress = lambda what, fraction: None,
) -> Learned:
    """Train procedures with one plan."""
    runs = [Run(Procedure.parse(each), seed) for each in procedures]
    place, config = devices.resolve_device(device), plan.config
    if all(run.procedure.centralized for run in runs):
        config = pooled_config(config, count_training_rows(problem))
    rounds, epochs = config.rounds, config.epochs
    example, _ = draw_example(plan.backbone, next(iter(problem.train.values())), plan.config.features)
    with devices.use_device(place), devices.limit_threads(example.size, place):
        keeps_trained = any(run.procedure.moment_head for run in runs)
        federation = Federation(problem, plan.backbone, runs, config, place, keeps_trained=keeps_trained)
        name = plan.backbone if isinstance(plan.backbone, str) else "own network"

        labels = ", ".join(LABELS.get(each, each) for each in procedures)

        def on_epoch(epoch: int) -> None:
            on_progress(f"{name}, {labels}", (federation.finished + epoch / epochs) / rounds)

        for _ in federation.rounds(on_epoch, measured=False):
            pass
    return Learned(federation, plan)


def count_training_rows(problem: Problem) -> int:
    """Count the training rows of all sites."""
    return sum(map(len, problem.train.values()))


def choose_plan(
    problem: Problem,
    procedure: str = AUTO,
    seed: int = 0,
    device: str = "cpu",
    on_progress: Progress = lambda what, fraction: None,
) -> Learned:
    """Train the next larger network as long as each clearly lowers the validation error; return the best.

    Above LARGE training rows, only the smallest is tried.
    """
    rows = count_training_rows(problem)
    first, *larger = plans(rows)
    best = learn(problem, first, [procedure], seed, device, on_progress)
    for plan in larger if rows <= LARGE else ():
        learned = learn(problem, plan, [procedure], seed, device, on_progress)
        gain = learned.validation_error(procedure) / best.validation_error(procedure)
        best = learned if gain < WORTHWHILE else best
        if not gain < PROMISING:
            break
    return best
