"""Predict and explain from sums over clients, without any client's own moments.

One round of the Gram recursion, A⁺ = Σ p_m B_m O_m with O_m the polar factor of B_mᵀ A, is a sum whose terms
clients compute from the broadcast A. So are Σ_within, Σ_cen and Σ p_m G_m, which give the three terms of the
gap, eq. (11). Each client's term is weighted by its rows, N_m = N p_m.

The recursion converges linearly; the server extrapolates its rounds (Anderson acceleration), which takes no
further sums. If the clients change on the way, it goes on to the barycenter of the clients that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import AccuracyError
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import phi

# Relative change of the Gram in one round at which the iteration ends. The barycenter's error was below 1e-11
# then, for condition numbers of Grams up to 1e4 and up to 10 targets.
CONVERGED = 1e-12
MAX_ROUNDS = 200
# Rounds that the extrapolation combines. With it, 7 to 11 rounds were needed at condition 10 and 8 to 19 at
# 100; the plain recursion needed 11 to 19 and 10 to 64.
DEPTH = 5

Number = float | Fraction


@dataclass(frozen=True, eq=False)
class Total:
    """A sum over clients: the exact total of their numbers, and the names of the clients in it."""

    numbers: Sequence[Fraction]
    clients: tuple[str, ...]


SumRound = Callable[[Array], Total]
"""Broadcast A (C, C), and sum every client's `round_numbers`."""
SumMoments = Callable[[tuple[str, ...]], Total | None]
"""Sum the `moment_numbers` of exactly these clients; None, without opening any total, if one is missing."""


def round_numbers(moments: Moments, penalty: Penalty, broadcast: Array) -> list[Number]:
    """Return N_m and N_m B_m O_m of a single client, 1 + C² numbers, for the broadcast A (C, C)."""
    count, gram = float(moments.count[0]), phi(moments.covariance[0], penalty)
    return [count, *(count * psd.closest_factor(broadcast, gram)).ravel()]


def moment_numbers(moments: Moments, penalty: Penalty) -> list[Number]:
    """Return N_m, N_m μ_m, N_m μ_m μ_mᵀ, N_m Σ_m, N_m G_m of a single client, and 1 if it is fully active.

    Products of means are exact: far from zero, rounded ones would lose the digits of Σ_cen.
    """
    count, mean = Fraction(moments.count[0]), [Fraction(value) for value in moments.mean[0].tolist()]
    covariance = moments.covariance[0]
    gram = phi(covariance, penalty)
    is_active = bool(np.linalg.eigvalsh(covariance)[0] > penalty.threshold)
    return [
        count,
        *(count * first for first in mean),
        *(count * first * second for first in mean for second in mean),
        *(float(count) * covariance).ravel().tolist(),
        *(float(count) * gram).ravel().tolist(),
        float(is_active),
    ]


@dataclass(frozen=True, eq=False)
class SumPrediction:
    """Limit of federated averaging, and its gap to centralized training, from sums over clients.

    Parameters
    ----------
    clients
        Names of the clients in all sums that count.
    count
        Their rows N.
    pooled
        Moments of the pooled rows.
    penalty
        λ_H and λ_W.
    barycenter
        G_⋆, (C, C).
    arithmetic
        Σ p_m G_m, (C, C).
    active
        Number of fully active clients.
    residual
        Relative change of the Gram in one more round.
    rounds
        Sums that the barycenter took.
    """

    clients: tuple[str, ...]
    count: int
    pooled: Pooled
    penalty: Penalty
    barycenter: Array
    arithmetic: Array
    active: int
    residual: float
    rounds: int

    @property
    def within(self) -> Array:
        """G_within = φ(Σ_within), (C, C)."""
        return phi(self.pooled.within, self.penalty)

    @property
    def centralized(self) -> Array:
        """G_cen = φ(Σ_cen), (C, C)."""
        return phi(self.pooled.covariance, self.penalty)

    @property
    def terms(self) -> dict[str, Array]:
        """The three terms of the gap, eq. (11), (C, C) each."""
        return {
            "mean": self.centralized - self.within,
            "covariance": self.within - self.arithmetic,
            "averaging": self.arithmetic - self.barycenter,
        }

    @property
    def relative_gap(self) -> float:
        """‖G_cen - G_⋆‖_F / ‖G_cen‖_F."""
        return float(psd.relative_error(self.barycenter, self.centralized))

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats as sentences; empty in the fully active regime."""
        inactive = len(self.clients) - self.active
        if not inactive:
            return ()
        return (
            f"{inactive} of {len(self.clients)} clients are not fully active, and inactive directions were "
            "clipped: the three terms of the gap need not be positive.",
        )


def predict_from_sums(
    sum_round: SumRound, sum_moments: SumMoments, targets: int, penalty: Penalty | None = None
) -> SumPrediction:
    """Predict the limit of federated averaging and explain its gap, from sums over clients.

    The moments are summed last, and once: two totals that differ by one client would reveal its moments.

    Parameters
    ----------
    sum_round, sum_moments
        Evaluate the two sums; see `round_numbers` and `moment_numbers`.
    targets
        Number C of targets.
    penalty
        λ_H and λ_W; `Penalty()` by default.

    Raises
    ------
    AccuracyError
        If the barycenter does not converge within 200 rounds.

    Examples
    --------
    >>> from fedgram import Moments, Penalty
    >>> from fedgram.theory.sum_prediction import (
    ...     Total, moment_numbers, predict_from_sums, round_numbers
    ... )
    >>> penalty = Penalty(features=0.25, head=0.25)
    >>> sites = [Moments(count=[9], mean=[[mean]], covariance=[[[1.0]]]) for mean in (-1.0, 1.0)]
    >>> def total(parts):
    ...     return Total([sum(each) for each in zip(*parts)], ("a", "b"))
    >>> found = predict_from_sums(
    ...     lambda head: total([round_numbers(site, penalty, head) for site in sites]),
    ...     lambda clients: total([moment_numbers(site, penalty) for site in sites]),
    ...     targets=1, penalty=penalty,
    ... )
    >>> round(found.relative_gap, 4), found.barycenter.round(4).tolist()
    (0.3558, [[0.75]])
    """
    penalty, head, rounds = Penalty.or_default(penalty), np.eye(targets), 0
    while True:
        head, residual, clients, rounds = _find_barycenter(sum_round, head, rounds)
        if (total := sum_moments(clients)) is not None:
            break
    count, numbers, square = total.numbers[0], list(total.numbers[1:]), targets**2
    mean = [value / count for value in numbers[:targets]]
    outer = [first * second for first in mean for second in mean]
    products, within, grams = (
        [value / count for value in numbers[start : start + square]]
        for start in range(targets, targets + 3 * square, square)
    )
    between = [product - subtrahend for product, subtrahend in zip(products, outer, strict=True)]
    return SumPrediction(
        clients=clients,
        count=int(count),
        pooled=Pooled(_to_array(mean), _to_matrix(within), _to_matrix(between)),
        penalty=penalty,
        barycenter=psd.gram(head),
        arithmetic=_to_matrix(grams),
        active=int(numbers[-1]),
        residual=residual,
        rounds=rounds,
    )


def _find_barycenter(
    sum_round: SumRound, head: Array, rounds: int
) -> tuple[Array, float, tuple[str, ...], int]:
    """Iterate from a head (C, C); return the limit, its residual, its clients, and all rounds so far."""
    moved: list[Array] = []
    steps: list[Array] = []
    clients: tuple[str, ...] = ()
    while rounds < MAX_ROUNDS:
        total = sum_round(head)
        rounds += 1
        new = _to_array([value / total.numbers[0] for value in total.numbers[1:]]).reshape(head.shape)
        residual = float(psd.relative_error(psd.gram(head), psd.gram(new)))
        if residual <= CONVERGED:
            return new, residual, total.clients, rounds
        if total.clients != clients:  # another map: its rounds cannot be combined with those before
            clients, moved, steps = total.clients, [], []
        moved, steps = [*moved, new][-DEPTH:], [*steps, new - head][-DEPTH:]
        head = _extrapolate(moved, steps)
    raise AccuracyError(f"The barycenter did not converge within {MAX_ROUNDS} rounds.")


def _extrapolate(moved: list[Array], steps: list[Array]) -> Array:
    """Combine rounds so that their steps cancel best (Anderson): heads (C, C) after them, and the steps."""
    if len(steps) == 1:
        return moved[-1]
    step_changes, head_changes = (np.diff(each, axis=0).reshape(len(each) - 1, -1) for each in (steps, moved))
    # Changes that are rounding of others would get huge factors.
    factors = np.linalg.lstsq(step_changes.T, steps[-1].ravel(), rcond=1e-10)[0]
    return moved[-1] - (factors @ head_changes).reshape(moved[-1].shape)


def _to_array(values: Sequence[Fraction]) -> Array:
    return np.array([float(value) for value in values])


def _to_matrix(values: Sequence[Fraction]) -> Array:
    size = isqrt(len(values))
    return psd.symmetric(_to_array(values).reshape(size, size))
