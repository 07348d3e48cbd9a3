"""Should the sites federate? Train the alternatives and compare them on held-out rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.cluster import check_engine
from fedgram._util.errors import InputError, check_type
from fedgram._util.text import number_targets, pluralize
from fedgram.data.holdout import MIN_ROWS_OF_SMALL_SITES, MIN_SITE_ROWS
from fedgram.data.problem import Problem
from fedgram.data.target_scale import target_scale as noted_scale
from fedgram.federation.alone import choose_alone
from fedgram.nets.model import default_name
from fedgram.runs.advice import ALONE, AUTO, FEDAVG, HEAD, POOLED, Advice, Alone, Errors
from fedgram.runs.held_out import HeldOutErrors
from fedgram.theory.own_heads import NOISE_RATIOS
from fedgram.training.advice_notes import write_notes
from fedgram.training.engines import run_tasks
from fedgram.training.site_learning import Plan, Progress, choose_plan, learn
from fedgram.training.trainer import check_trainable, parse_runs
from fedgram.training.verdicts import judge_sites, lowest_over_sites, recommend, total_change

Name = TypeVar("Name", bound=str)

HOLD_OUT = {
    "test": f"A table's site needs {MIN_SITE_ROWS} rows, or {MIN_ROWS_OF_SMALL_SITES} if all sites are "
    "small, and a positive --test-fraction (test_fraction); other problems need hold_out(problem, 0.2).",
    "validation": "Hold some out with problem.hold_out_validation(0.2).",
}


def advise(
    problem: Problem,
    target_scale: Array | None = None,
    *,
    plan: Plan | None = None,
    seeds: Sequence[int] = (0,),
    device: str = "auto",
    engine: str = "local",
    on_progress: Progress = lambda what, fraction: None,
) -> Advice:
    """Train alone, with a shared head, by FedAvg, with a moment head and site effects, and pooled.

    Parameters
    ----------
    problem : Problem
        With test and validation rows; inputs and targets should be standardized. If its provenance has the
        key 'time', test rows are in order of time, and intervals draw blocks of them.
    target_scale : array (C,), optional
        Standard deviations that the targets were divided by; they convert errors to the targets' own units.
        By default those in the problem's provenance, as `read_site_problem` notes them.
    plan : Plan, optional
        Network and budget; by default chosen on validation rows.
    seeds : sequence of int
        Predictions are averaged over networks trained with each seed.
    device : str
        'auto', 'cpu', 'cuda' or 'cuda:1'.
    engine : str
        'local', or 'ray' to train on all GPUs of a Ray cluster.
    on_progress : function of str and float
        Called with what is trained and the fraction that is done; not from a cluster.

    Returns
    -------
    Advice

    Raises
    ------
    InputError
        If the problem has no test or no validation rows.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from fedgram import Plan, advise, read_site_problem
    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"site": ["a", "b", "c"] * 40, "dose": rng.normal(50, 9, 120)})
    >>> frame["effect"] = 3 * frame.dose + rng.normal(size=120)
    >>> problem = read_site_problem(frame, client="site", inputs="dose", targets="effect")
    >>> advice = advise(problem, plan=Plan.from_backbone("wide-deep-64", rounds=1))
    >>> advice.sites[0].test_rows, [each.name for each in advice.procedures][:2]
    (8, ['local', 'ordinary'])
    """
    check_type(problem, Problem, "advise()", "Build it with read_site_problem, or Problem.from_arrays")
    if plan is not None:
        check_type(plan, Plan, "advise()", "Build it with Plan.from_backbone")
    seeds = [run.seed for run in parse_runs(AUTO, seeds)]
    for part in ("test", "validation"):
        if not any(len(split) for split in getattr(problem, part).values()):
            raise InputError(f"No site has {part} rows. {HOLD_OUT[part]}", field=part)
    check_trainable(problem)  # before hours of training end with a command that fails
    shared = _Shared(problem, device, on_progress if check_engine(engine) == "local" else _no_progress)
    (first,) = run_tasks(engine, _train, [_Task((AUTO,), seeds[0], plan)], shared)
    others = [(HEAD,), (POOLED,)]
    tasks = [_Task(names, seed, first.plan) for seed in seeds for names in others]
    tasks += [_Task((AUTO,), seed, first.plan) for seed in seeds[1:]]
    every = (first, *run_tasks(engine, _train, tasks, shared))
    problems = dict.fromkeys(sentence for trained in every for sentence in trained.problems)  # in order
    truth = [split.targets for split in problem.test.values()]
    alone = _average(trained.alone for trained in every)
    method = choose_alone(alone, truth)
    joined = _average(trained.predicted for trained in every)
    average = {ALONE: alone[method], **{name: joined[name] for name in (HEAD, FEDAVG, AUTO, POOLED)}}
    targets = problem.target_names or number_targets(truth[0].shape[1])
    scale = noted_scale(problem.provenance, targets) if target_scale is None else np.asarray(target_scale)
    procedures = tuple(_errors(name, average[name], truth, scale) for name in average)
    squares = {name: _square_errors(rows, truth) for name, rows in average.items()}
    sites = judge_sites(problem, squares[ALONE], squares[AUTO], scale)
    change = total_change(problem, squares[ALONE], squares[AUTO])
    recommended = recommend(change, lowest_over_sites(squares[ALONE], squares[AUTO]))
    return Advice(
        targets=targets,
        recommended=recommended,
        procedures=procedures,
        sites=sites,
        alone=method,
        total_change=change,
        exchanged=_exchanged(recommended, first, problem),
        backbone=default_name(first.plan.backbone),
        config=first.plan.config,
        notes=(*problems, *write_notes(problem, sites, method, procedures, squares, recommended)),
    )


@dataclass(frozen=True)
class _Task:
    """Procedures to train as one stack; validation rows choose the plan if there is none."""

    procedures: tuple[str, ...]
    seed: int
    plan: Plan | None


@dataclass(frozen=True, eq=False)
class _Shared:
    """Arguments of all tasks."""

    problem: Problem
    device: str
    on_progress: Progress


@dataclass(frozen=True, eq=False)
class _Trained:
    """Test predictions of every site by procedure, and the network: its parameters and its features.

    alone: those without the other sites, by method; empty if no site was trained alone.
    """

    plan: Plan
    predicted: dict[str, list[Array]]
    parameters: int
    features: int
    problems: tuple[str, ...]
    alone: dict[Alone, list[Array]]


def _train(task: _Task, shared: _Shared) -> _Trained:
    problem, options = shared.problem, (task.seed, shared.device, shared.on_progress)
    if task.plan is None:
        (procedure,) = task.procedures
        learned = choose_plan(problem, procedure, *options)
    else:
        learned = learn(problem, task.plan, task.procedures, *options)
    models = {name: learned.models(name) for name in task.procedures}
    predicted = {name: learned.predict(name, models[name], "test") for name in task.procedures}
    alone = learned.predict_alone(AUTO) if AUTO in models else {}
    if AUTO in models:
        predicted[FEDAVG] = learned.predict_fedavg(AUTO)
    if POOLED in predicted:
        predicted[POOLED] = _split_pooled(problem, *predicted[POOLED])
    layers = learned.federation.clients.stack.parameters
    size = sum(value[0].numel() for value in layers.values())
    width = layers["feature.weight"].shape[-1]
    return _Trained(learned.plan, predicted, size, width, learned.problems, alone)


def _average(runs: Iterable[Mapping[Name, list[Array]]]) -> dict[Name, list[Array]]:
    """Average the predictions of every site over seeds, by name."""
    by_name: dict[Name, list[list[Array]]] = {}
    for predicted in runs:
        for name, rows in predicted.items():
            by_name.setdefault(name, []).append(rows)
    return {
        name: [np.mean(each, axis=0) for each in zip(*rows, strict=True)] for name, rows in by_name.items()
    }


def _no_progress(what: str, fraction: float) -> None:
    """Progress of a task in another process, which cannot report it."""


def _split_pooled(problem: Problem, rows: Array) -> list[Array]:
    """Divide the predictions of a centralized run, all rows in order, over the sites."""
    ends = np.cumsum([len(split) for split in problem.test.values()])
    return np.split(rows, ends[:-1])


def _square_errors(predicted: Sequence[Array], truth: Sequence[Array]) -> list[Array]:
    return [(f - y) ** 2 for f, y in zip(predicted, truth, strict=True)]


def _errors(name: str, predicted: list[Array], truth: list[Array], scale: Array) -> Errors:
    found = HeldOutErrors.from_predictions(predicted, truth)
    return Errors(
        name,
        standardized_mse=float(found.total_mse.mean()),
        rmse=scale * np.sqrt(found.total_mse),
        r2=found.total_r2,
        site_rmse=scale * np.sqrt(found.mse),
        site_r2=found.r2,
    )


def _exchanged(procedure: str, trained: _Trained, problem: Problem) -> tuple[str, ...]:
    """List what leaves a site; round and strengths are chosen with sums over its rows."""
    if procedure == ALONE:
        return ()
    size, width = trained.parameters, trained.features
    targets = pluralize(trained.predicted[AUTO][0].shape[1], "target")
    return (
        f"once: {', '.join(_list_summary(problem.provenance))}",
        f"every round: the network's {size:,} parameters in both directions",
        f"every round: row count, sums and sums of products of {width} features and {targets}, over training "
        "and over validation rows",
        "every round: validation error of the model trained alone",
        f"at the end: {3 * len(NOISE_RATIOS)} sums over validation rows that compare the model trained alone",
        f"at the end: squared errors on test rows of {len(get_args(Alone))} ways to work alone",
    )


def _list_summary(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Describe what a site sends before training, for the prediction and to encode its columns."""
    yield "row count, mean and covariance of the targets"
    inputs = provenance.get("encoding", {}).get("inputs", ())
    if any(column["kind"] == "number" for column in inputs):
        yield "count, mean and sum of squares of every numeric input"
    if any(column["kind"] == "category" for column in inputs):
        yield "levels of every category with their counts"
    if any(column.get("median") is not None for column in inputs):
        yield "medians"
