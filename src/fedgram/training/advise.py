"""Should the sites federate? Train the alternatives and compare them on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_list
from fedgram.data.problem import Problem, Split
from fedgram.nets.model import default_name
from fedgram.runs.advice import ALONE, AUTO, FEDAVG, HEAD, LABELS, POOLED, Advice, Errors, SiteAdvice, Verdict
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.ridge import STRENGTHS
from fedgram.training.engines import check_engine, run_tasks
from fedgram.training.site_learning import Plan, Progress, choose_plan, learn

RESAMPLES = 2000  # of the paired bootstrap; the ends of a 95 % interval then vary by about 2 % of its width
LEVEL = 0.95

# Fewer test rows decide nothing: all signs of five differences agree by chance in 6 % of samples.
FEWEST_TEST_ROWS = 6


def advise(
    problem: Problem,
    target_scale: Array | None = None,
    *,
    plan: Plan | None = None,
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    engine: str = "local",
    on_progress: Progress = lambda what, fraction: None,
) -> Advice:
    """Train alone, with a shared head, by FedAvg, with a moment head and site effects, and pooled.

    Parameters
    ----------
    problem : Problem
        With test and validation rows; inputs and targets should be standardized.
    target_scale : array (C,), optional
        Standard deviations that the targets were divided by; they convert errors to the targets' own units.
    plan : Plan, optional
        Network and budget; by default chosen on validation rows.
    seeds : sequence of int
        Predictions are averaged over networks trained with each seed.
    device : str
        'cpu', 'cuda' or 'auto'.
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
    >>> import numpy as np
    >>> from fedgram.data.problem import Problem
    >>> from fedgram.training.advise import advise
    >>> from fedgram.training.site_learning import plans
    >>> rng = np.random.default_rng(0)
    >>> x = [rng.standard_normal((40, 2)) for _ in range(3)]
    >>> problem = Problem.from_arrays(x, [a[:, :1] + m for m, a in enumerate(x)], target_names=["y"])
    >>> import fedgram
    >>> problem = fedgram.hold_out(problem, 0.25).hold_out_validation(0.2)
    >>> advice = advise(problem, plan=plans()[0])
    >>> advice.sites[0].test_rows, [each.name for each in advice.procedures][:2]
    (10, ['local', 'ordinary'])
    """
    for part in ("test", "validation"):
        if not any(len(split) for split in getattr(problem, part).values()):
            raise InputError(f"The problem has no {part} rows. Hold some out.", field=part)
    shared = _Shared(problem, device, on_progress if check_engine(engine) == "local" else _no_progress)
    (first,) = run_tasks(engine, _train, [_Task((AUTO,), seeds[0], plan)], shared)
    others = [(HEAD, FEDAVG), (POOLED,)]
    tasks = [_Task(names, seed, first.plan) for seed in seeds for names in others]
    tasks += [_Task((AUTO,), seed, first.plan) for seed in seeds[1:]]
    predicted: dict[str, list[list[Array]]] = {name: [] for name in (ALONE, HEAD, FEDAVG, AUTO, POOLED)}
    for trained in (first, *run_tasks(engine, _train, tasks, shared)):
        for name, rows in trained.predicted.items():
            predicted[name].append(rows)
    average = {
        name: [np.mean(each, axis=0) for each in zip(*runs, strict=True)] for name, runs in predicted.items()
    }
    truth = [split.targets for split in problem.test.values()]
    scale = np.ones(truth[0].shape[1]) if target_scale is None else np.asarray(target_scale)
    procedures = tuple(_errors(name, average[name], truth, scale) for name in average)
    sites = tuple(
        _advise_site(name, problem, average[ALONE][m], average[AUTO][m], truth[m], scale, m)
        for m, name in enumerate(problem.clients)
    )
    recommended = _recommend(procedures)
    return Advice(
        targets=problem.target_names or tuple(f"target {c + 1}" for c in range(len(scale))),
        recommended=recommended,
        procedures=procedures,
        sites=sites,
        exchanged=_exchanged(recommended, first),
        backbone=default_name(first.plan.backbone),
        config=first.plan.config,
        notes=(
            *_total_notes(average[ALONE], average[AUTO], truth),
            *_notes(procedures, sites, recommended),
            *_linear_notes(problem, next(each for each in procedures if each.name == recommended)),
        ),
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
    """Test predictions of every site by procedure, and the network: its parameters and its features."""

    plan: Plan
    predicted: dict[str, list[Array]]
    parameters: int
    features: int


def _train(task: _Task, shared: _Shared) -> _Trained:
    problem, options = shared.problem, (task.seed, shared.device, shared.on_progress)
    if task.plan is None:
        (procedure,) = task.procedures
        learned = choose_plan(problem, procedure, *options)
    else:
        learned = learn(problem, task.plan, task.procedures, *options)
    # a blended run trains every site alone as well
    names = (ALONE, AUTO) if AUTO in task.procedures else task.procedures
    predicted = {name: learned.predict(name, learned.models(name), "test") for name in names}
    if POOLED in predicted:
        predicted[POOLED] = _split_pooled(problem, *predicted[POOLED])
    layers = learned.federation.clients.stack.parameters
    size = sum(value[0].numel() for value in layers.values())
    return _Trained(learned.plan, predicted, size, layers["feature.weight"].shape[-1])


def _no_progress(what: str, fraction: float) -> None:
    """Progress of a task in another process, which cannot report it."""


def _recommend(procedures: Sequence[Errors]) -> str:
    """Recommend the federated procedure, unless working alone is better in total."""
    errors = {each.name: each.standardized_mse for each in procedures}
    return AUTO if errors[AUTO] <= errors[ALONE] else ALONE


def _split_pooled(problem: Problem, rows: Array) -> list[Array]:
    """Divide the predictions of a centralized run, all rows in order, over the sites."""
    ends = np.cumsum([len(split) for split in problem.test.values()])
    return np.split(rows, ends[:-1])


def _errors(name: str, predicted: list[Array], truth: list[Array], scale: Array) -> Errors:
    squares = [(f - y) ** 2 for f, y in zip(predicted, truth, strict=True)]
    rows = np.concatenate(squares)
    variance = np.concatenate(truth).var(axis=0)
    mean = rows.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(variance > 0, 1 - mean / variance, np.nan)
    by_site = [np.sqrt(each.mean(axis=0)) if len(each) else np.full(len(scale), np.nan) for each in squares]
    return Errors(name, float(rows.mean()), scale * np.sqrt(mean), r2, scale * np.stack(by_site))


def _advise_site(
    name: str, problem: Problem, alone: Array, federated: Array, truth: Array, scale: Array, number: int
) -> SiteAdvice:
    fitted = len(problem.train[name]) + len(problem.validation[name])
    if not len(truth):
        nothing = np.full(len(scale), np.nan)
        return SiteAdvice(name, fitted, 0, (np.nan,) * 3, nothing, nothing, nothing, "undecided")
    own, ours = (alone - truth) ** 2, (federated - truth) ** 2
    draws = np.random.default_rng(number).integers(len(truth), size=(RESAMPLES, len(truth)))
    total = (own - ours).mean(axis=1)[draws].mean(axis=1)
    change = scale * (np.sqrt(own[draws].mean(axis=1)) - np.sqrt(ours[draws].mean(axis=1)))
    ends = (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
    low, high = np.quantile(total, ends)
    low_change, high_change = np.quantile(change, ends, axis=0)
    mean_change = scale * (np.sqrt(own.mean(axis=0)) - np.sqrt(ours.mean(axis=0)))
    verdict: Verdict = "undecided"
    if len(truth) >= FEWEST_TEST_ROWS and (low > 0 or high < 0):
        verdict = "join" if low > 0 else "alone"
    difference = (float((own - ours).mean()), float(low), float(high))
    return SiteAdvice(name, fitted, len(truth), difference, mean_change, low_change, high_change, verdict)


def _exchanged(procedure: str, trained: _Trained) -> tuple[str, ...]:
    if procedure == ALONE:
        return ()
    size, width = trained.parameters, trained.features
    targets = trained.predicted[AUTO][0].shape[1]
    return (
        "once: row count, sums and sums of squares of every input and target, levels of categories",
        f"every round: the network's {size:,} parameters and one validation error, in both directions",
        f"at the end: row count, sums and sums of products of {width} features and {targets} targets",
        "at the end: validation errors of the searched strengths, and two sums for the shares",
    )


def _notes(procedures: Sequence[Errors], sites: Sequence[SiteAdvice], recommended: str) -> tuple[str, ...]:
    notes = []
    if small := [site.name for site in sites if not site.test_rows]:
        served = f"; the shared model serves {quote_list(small)}"
        notes.append(f"Too few rows to test{f' at {quote_list(small)}' if recommended == ALONE else served}.")
    best = min((each for each in procedures if each.name != POOLED), key=lambda each: each.standardized_mse)
    if best.name not in (AUTO, ALONE):
        notes.append(f"On these test rows '{LABELS[best.name]}' had the least error.")
    return tuple(notes)


def _total_notes(alone: list[Array], federated: list[Array], truth: list[Array]) -> tuple[str, ...]:
    """Say so if test rows do not show whether joining lowers or raises the total error."""
    rng = np.random.default_rng(len(truth))
    totals = np.zeros((2, RESAMPLES))
    for own, ours, y in zip(alone, federated, truth, strict=True):
        if len(y):  # rows are drawn within each site, as many as it has
            draws = rng.integers(len(y), size=(RESAMPLES, len(y)))
            totals += [((f - y) ** 2).sum(axis=1)[draws].sum(axis=1) for f in (own, ours)]
    if not (totals > 0).all():
        return ()
    low, high = 100 * (np.quantile(totals[1] / totals[0], (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)) - 1)
    if low > 0 or high < 0:
        return ()
    return (f"The 95 % interval of the total change contains 0: {low:+.0f} % to {high:+.0f} %.",)


def _linear_notes(problem: Problem, recommended: Errors) -> tuple[str, ...]:
    """Say so if linear regression at each site alone has less error than the recommended networks."""
    splits = (problem.train, problem.validation, problem.test)
    if any(split.inputs.ndim != 2 for part in splits for split in part.values()):
        return ()  # images
    squares = [_linear_squares(*(part[name] for part in splits)) for name in problem.clients]
    mse = float(np.concatenate(squares).mean())
    if not mse < recommended.standardized_mse:
        return ()
    return (
        "Linear ridge regression at each site alone has less error than the recommended networks: "
        f"standardized MSE {mse:.4f}.",
    )


def _linear_squares(train: Split, validation: Split, test: Split) -> Array:
    """Return squared test errors (N, C) of a ridge regression; validation rows choose its strength."""
    if not len(test):
        return np.empty(test.targets.shape)
    origin = np.asarray(train.inputs[0], float)  # a column that is constant at the site becomes exactly 0
    fitted, held_out = (
        FeatureSums.from_rows(part.inputs - origin, part.targets) for part in (train, validation)
    )
    strength = min(STRENGTHS, key=lambda each: held_out.squared_error(fitted.ridge(each)).sum())
    head = (fitted + held_out).ridge(strength)
    return (head.predict(test.inputs - origin) - test.targets) ** 2
