"""Should the sites federate? Train the alternatives and compare them on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.data.encoding import Encoding
from fedgram.data.problem import Problem
from fedgram.federation.federation import Federation
from fedgram.federation.site_models import SiteModels
from fedgram.training.site_learning import AUTO, Learned, Plan, Progress, choose_plan, learn

ALONE, HEAD, FEDAVG, POOLED = "local", "ordinary", "full-model", "centralized"

LABELS = {
    ALONE: "alone",
    HEAD: "shared head",
    FEDAVG: "FedAvg",
    AUTO: "moment head with site effects",
    POOLED: "pooled",
}
"""Name of each procedure for people."""

Verdict = Literal["join", "alone", "undecided"]

RESAMPLES = 2000  # of the paired bootstrap; the ends of a 95 % interval then vary by about 2 % of its width
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Errors:
    """Held-out errors of one procedure in the targets' own units.

    rmse and r2 (C,): over all sites; site_rmse (M, C): NaN without test rows; standardized_mse: mean over
    rows and targets, each divided by the pooled variance.
    """

    name: str
    standardized_mse: float
    rmse: Array
    r2: Array
    site_rmse: Array


@dataclass(frozen=True, eq=False)
class SiteAdvice:
    """Answer for one site.

    difference: standardized MSE alone minus federated, with a 95 % interval from a paired bootstrap over its
    test rows; positive if joining helps. rmse_change (C,) with low and high (C,): RMSE alone minus federated
    in the targets' units.
    """

    name: str
    rows: int
    test_rows: int
    difference: tuple[float, float, float]
    rmse_change: Array
    low: Array
    high: Array
    verdict: Verdict


@dataclass(frozen=True, eq=False)
class Advice:
    """Comparison of procedures on held-out rows, for every site and in total."""

    targets: tuple[str, ...]
    recommended: str
    procedures: tuple[Errors, ...]
    sites: tuple[SiteAdvice, ...]
    exchanged: tuple[str, ...]
    plan: Plan
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram advise --json`."""
        names = [each.name for each in self.procedures]
        return {
            "targets": list(self.targets),
            "recommended": self.recommended,
            "procedures": [
                {
                    "name": each.name,
                    "standardized_mse": each.standardized_mse,
                    "rmse": self._by_target(each.rmse),
                    "r2": self._by_target(each.r2),
                }
                for each in self.procedures
            ],
            "sites": [
                {
                    "name": site.name,
                    "rows": site.rows,
                    "test_rows": site.test_rows,
                    "rmse": {
                        name: self._by_target(errors.site_rmse[m])
                        for name, errors in zip(names, self.procedures, strict=True)
                    },
                    "difference": dict(
                        zip(("mean", "low", "high"), map(_number, site.difference), strict=True)
                    ),
                    "verdict": site.verdict,
                }
                for m, site in enumerate(self.sites)
            ],
            "exchanged": list(self.exchanged),
            "notes": list(self.notes),
        }

    def _by_target(self, values: Array) -> dict[str, float | None]:
        return dict(zip(self.targets, map(_number, values.tolist()), strict=True))


def advise(
    problem: Problem,
    encoding: Encoding | None = None,
    *,
    plan: Plan | None = None,
    seeds: Sequence[int] = (0,),
    device: str = "cpu",
    on_progress: Progress = lambda what, fraction: None,
) -> Advice:
    """Train alone, with a shared head, by FedAvg, with a moment head and site effects, and pooled.

    Parameters
    ----------
    problem : Problem
        With test and validation rows; inputs and targets should be standardized.
    encoding : Encoding, optional
        Converts errors to the targets' own units.
    plan : Plan, optional
        Network and budget; by default chosen on validation rows.
    seeds : sequence of int
        Predictions are averaged over networks trained with each seed.
    device : str
        'cpu', 'cuda' or 'auto'.
    on_progress : function of str and float
        Called with what is trained and the fraction that is done.

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
    chosen = plan or choose_plan(problem, AUTO, seeds[0], device, on_progress).plan
    predicted: dict[str, list[list[Array]]] = {}
    models: SiteModels | None = None
    for seed in seeds:
        together = learn(problem, chosen, (ALONE, HEAD, FEDAVG, AUTO), seed, device, on_progress)
        for name in (ALONE, HEAD, FEDAVG, AUTO):
            final = together.models(name)
            predicted.setdefault(name, []).append(together.predict(name, final, "test"))
            models = final if name == AUTO and models is None else models
        pooled = learn(problem, chosen, (POOLED,), seed, device, on_progress)
        predicted.setdefault(POOLED, []).append(_split_pooled(problem, pooled))
    assert models is not None
    scale = encoding.target_scale if encoding else np.ones(problem.moments.mean.shape[1])
    average = {
        name: [np.mean(each, axis=0) for each in zip(*runs, strict=True)] for name, runs in predicted.items()
    }
    truth = [split.targets for split in problem.test.values()]
    procedures = tuple(_errors(name, average[name], truth, scale) for name in average)
    sites = tuple(
        _advise_site(name, problem, average[ALONE][m], average[AUTO][m], truth[m], scale, m)
        for m, name in enumerate(problem.clients)
    )
    best = min((each for each in procedures if each.name != POOLED), key=lambda each: each.standardized_mse)
    return Advice(
        targets=problem.target_names or tuple(f"target {c + 1}" for c in range(len(scale))),
        recommended=_recommend(procedures),
        procedures=procedures,
        sites=sites,
        exchanged=_exchanged(_recommend(procedures), chosen, together.federation),
        plan=chosen,
        notes=_notes(sites, best.name),
    )


def _recommend(procedures: Sequence[Errors]) -> str:
    """Recommend the federated procedure, unless working alone is better in total."""
    errors = {each.name: each.standardized_mse for each in procedures}
    return AUTO if errors[AUTO] <= errors[ALONE] else ALONE


def _split_pooled(problem: Problem, learned: Learned) -> list[Array]:
    """Divide the predictions of a centralized run, all rows in order, over the sites."""
    (rows,) = learned.predict(POOLED, learned.models(POOLED), "test")
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
    verdict: Verdict = "join" if low > 0 else "alone" if high < 0 else "undecided"
    difference = (float((own - ours).mean()), float(low), float(high))
    return SiteAdvice(name, fitted, len(truth), difference, mean_change, low_change, high_change, verdict)


def _exchanged(procedure: str, plan: Plan, federation: Federation) -> tuple[str, ...]:
    if procedure == ALONE:
        return ()
    layers = federation.clients.stack.parameters
    size = sum(value[0].numel() for value in layers.values())
    width, targets = layers["feature.weight"].shape[-1], layers["head.bias"].shape[-1]
    return (
        "once: row count, sums and sums of squares of every input and target, levels of categories",
        f"every round: the network's {size:,} parameters and one validation error, in both directions",
        f"at the end: row count, sums and sums of products of {width} features and {targets} targets",
        "at the end: validation errors of the searched strengths, and two sums for the shares",
    )


def _notes(sites: Sequence[SiteAdvice], best: str) -> tuple[str, ...]:
    small = [site.name for site in sites if not site.test_rows]
    notes = []
    if small:
        names = ", ".join(f"'{name}'" for name in small[:5]) + (" and others" if len(small) > 5 else "")
        notes.append(f"Too few rows to test, so the shared model serves them: {names}.")
    if best not in (AUTO, ALONE):
        notes.append(f"On the test rows, {LABELS[best]} had the least error.")
    return tuple(notes)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
