"""Notes of the advice: what to know before following the recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import number_targets, pluralize, quote_list
from fedgram.data.holdout import MIN_ROWS_OF_SMALL_SITES, MIN_SITE_ROWS
from fedgram.data.problem import Problem
from fedgram.runs.advice import (
    ALONE,
    ALONE_LABELS,
    AUTO,
    FEDAVG,
    HEAD,
    LABELS,
    Alone,
    Errors,
    SiteAdvice,
)
from fedgram.runs.paired_bootstrap import relative_change
from fedgram.training.linear_baselines import linear_errors

# Percent of mean squared error: notes name a better procedure if the whole interval of its gain is above.
NOTEWORTHY = 1.0

ONE_PERIOD = "Held-out rows are the latest ones. Intervals say nothing about how other periods differ."

Squares = Mapping[str, Sequence[Array]]
"""Squared errors (N_m, C) of every site's test rows, by procedure."""


def write_notes(
    problem: Problem,
    sites: Sequence[SiteAdvice],
    alone: Alone,
    procedures: Sequence[Errors],
    squares: Squares,
    recommended: str,
) -> tuple[str, ...]:
    """Return the notes, each a sentence."""
    in_time_order = problem.is_in_time_order
    return (
        *_alone_notes(alone),
        *_deciding_site_notes(sites, squares[ALONE], squares[AUTO]),
        *_small_site_notes(sites, recommended),
        *_skill_notes(problem, procedures, recommended),
        *_mean_notes(problem, sites, squares[recommended]),
        *_least_error_notes(squares, recommended, in_time_order),
        *_linear_notes(linear_errors(problem), squares[recommended], in_time_order),
        *((ONE_PERIOD,) if in_time_order else ()),
    )


def _alone_notes(alone: Alone) -> tuple[str, ...]:
    """Name the method to work alone, if it is not the network."""
    if alone == "network":
        return ()
    return (f"'Alone' is {ALONE_LABELS[alone]}: over all test rows it has less error than networks.",)


def _deciding_site_notes(
    sites: Sequence[SiteAdvice], alone: Sequence[Array], joined: Sequence[Array]
) -> tuple[str, ...]:
    """Name the site without which joining would change the total error in the other direction."""
    gains = np.array([(before - after).sum() for before, after in zip(alone, joined, strict=True)])
    m, total = int((gains * np.sign(gains.sum())).argmax()), gains.sum()
    if len(sites) < 3 or not np.isfinite(total) or total * (rest := total - gains[m]) >= 0:
        return ()
    change = 100 * rest / sum(each.sum() for k, each in enumerate(alone) if k != m)
    effect, digits = "lowers" if rest > 0 else "raises", 0 if abs(change) >= 10 else 1
    return (
        f"'{sites[m].name}' decides the total: without it, joining {effect} the mean squared error by "
        f"{abs(change):,.{digits}f} %.",
    )


def _small_site_notes(sites: Sequence[SiteAdvice], recommended: str) -> tuple[str, ...]:
    """Name sites without test rows, the first five of them."""
    small = [site.name for site in sites if not site.test_rows]
    if not small:
        return ()
    others = f" and {pluralize(len(small) - 5, 'more site')}" if len(small) > 5 else ""
    served = "" if recommended == ALONE else "; all their rows are for training"
    needed = f"a table's site needs {MIN_SITE_ROWS} rows, or {MIN_ROWS_OF_SMALL_SITES} if all have fewer"
    return (f"Too few rows to test at {quote_list(small[:5])}{others} ({needed}){served}.",)


def _skill_notes(problem: Problem, procedures: Sequence[Errors], recommended: str) -> tuple[str, ...]:
    """Name targets that no procedure, or not the recommended one, predicts better than a constant."""
    best = np.max([each.r2 for each in procedures], axis=0)
    ours = next(each.r2 for each in procedures if each.name == recommended)
    names = np.array(problem.target_names or number_targets(len(best)))
    by_none, by_others = names[best <= 0].tolist(), names[(best > 0) & (ours <= 0)].tolist()
    notes = []
    if by_none and len(by_none) < len(names):  # the answer says so if it is true of all targets
        notes.append(f"No procedure predicts {quote_list(by_none)} better than a constant would.")
    if by_others:
        notes.append(
            f"The recommended model predicts {quote_list(by_others)} no better than a constant would."
        )
    return tuple(notes)


def _mean_notes(problem: Problem, sites: Sequence[SiteAdvice], squares: Sequence[Array]) -> tuple[str, ...]:
    """Name sites where the recommended model predicts no better than the mean of the site's own rows."""
    worse, decisive = [], [each.name for each in sites if each.verdict != "untested"]
    for site, ours in zip(problem.clients, squares, strict=True):
        if site not in decisive:
            continue
        known = np.concatenate([problem.train[site].targets, problem.validation[site].targets])
        if ours.mean() >= ((problem.test[site].targets - known.mean(axis=0)) ** 2).mean():
            worse.append(site)
    if not worse:
        return ()
    others = f" and {len(worse) - 5} more" if len(worse) > 5 else ""
    where = f"At {len(worse)} of {pluralize(len(decisive), 'site')} with enough test rows"
    return (
        f"{where} the recommended model predicts them no better than the mean of the site's other rows "
        f"would: {quote_list(worse[:5])}{others}.",
    )


def _least_error_notes(squares: Squares, recommended: str, in_time_order: bool) -> tuple[str, ...]:
    """Say so if another federated procedure has clearly less error than the recommended one."""
    best = min((HEAD, FEDAVG), key=lambda name: np.concatenate(squares[name]).mean())
    gain = _clear_gain(squares[recommended], squares[best], in_time_order)
    if not gain:
        return ()
    # The interval covers neither other splits nor other seeds of the networks.
    check = "Check it with another --data-seed (seed)."
    return (f"On these test rows '{LABELS[best]}' has {gain} than what is recommended. {check}",)


def _clear_gain(recommended: Sequence[Array], other: Sequence[Array], in_time_order: bool) -> str:
    """Return how much less error another procedure has, or nothing if it may be less than NOTEWORTHY."""
    low, high = -100 * relative_change(recommended, other, in_time_order=in_time_order)[::-1]
    return f"{low:.0f} % to {high:.0f} % less mean squared error" if low >= NOTEWORTHY else ""


def _linear_notes(
    linear: Sequence[Array] | None, recommended: Sequence[Array], in_time_order: bool
) -> tuple[str, ...]:
    """Say so if linear regression with site effects has clearly less error than the recommended models."""
    gain = linear and _clear_gain(recommended, linear, in_time_order)
    if not gain:
        return ()
    kind = "Linear ridge regression with site effects, from sums over all sites,"
    return (f"{kind} has {gain} than the recommended models.",)
