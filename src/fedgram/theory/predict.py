"""Predict the limit of federated averaging from client target moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import EPS, Array, is_whole_number
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram._util.text import percent_range
from fedgram.theory.activity import Activity, describe_direction
from fedgram.theory.derivatives import regularized_gram
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import Barycenter, barycenter, trajectory
from fedgram.theory.geometry.weights import average
from fedgram.theory.moments import Moments, check_federation
from fedgram.theory.penalty import Penalty
from fedgram.theory.proximal import check_proximal, find_proximal_limit, proximal_trajectory

# A variance below this fraction of the largest covariance is rounding.
NEGLIGIBLE_VARIANCE = 1e-13


def phi(covariance: Array, penalty: Penalty) -> Array:
    """Optimal head Gram φ(T) = α T^(1/2) - λ_H I with negative eigenvalues clipped to 0, eq. (7).

    Parameters
    ----------
    covariance
        Target covariances T, (..., C, C).
    penalty
        λ_H and λ_W; α = sqrt(λ_H / λ_W).

    Returns
    -------
    ndarray
        Grams, (..., C, C).

    Raises
    ------
    InputError
        If a covariance is not finite, square and symmetric.

    Examples
    --------
    >>> from fedgram import Penalty, phi
    >>> phi([[4.0, 0.0], [0.0, 0.25]], Penalty(features=1.0, head=1.0)).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    penalty = Penalty.or_default(penalty)

    def optimum(variance: Array) -> Array:
        # (α² s - λ_H²) / (α √s + λ_H): the difference of the two terms without their cancellation.
        root = penalty.scale * np.sqrt(np.maximum(variance, 0.0))
        return np.maximum(variance - penalty.threshold, 0.0) * penalty.scale**2 / (root + penalty.features)

    return psd.spectral(optimum, psd.check_symmetric(covariance, "covariance"))


def local_optimum(covariance: Array, penalty: Penalty) -> Array:
    """Minimum L⋆ of the local objective, inactive eigenvalues included: (..., C, C) -> (...)."""
    variance = np.maximum(np.linalg.eigvalsh(covariance), 0.0)
    active = np.sqrt(penalty.threshold * variance) - 0.5 * penalty.threshold
    return np.where(variance > penalty.threshold, active, 0.5 * variance).sum(axis=-1)


def profiled_objective(head: Array, covariance: Array, penalty: Penalty) -> Array:
    """F(W; T) = λ_H/2 tr(T A⁻¹) + λ_W/2 ‖W‖², eq. (6): head (..., C, P), covariance (..., C, C) -> (...)."""
    fit = psd.trace(np.linalg.solve(regularized_gram(head, penalty), covariance))
    return 0.5 * penalty.features * fit + 0.5 * penalty.head * psd.frobenius(head) ** 2


def conditional_solution(head: Array, targets: Array, penalty: Penalty) -> tuple[Array, Array]:
    """Bias and features that minimize the local objective at a fixed head, Section 4.1.

    head (..., C, P), targets (..., C, N) -> bias μ (..., C), features Wᵀ A⁻¹ (Y - μ 1ᵀ) (..., P, N).
    """
    bias = targets.mean(axis=-1)
    centered = targets - bias[..., None]
    return bias, head.mT @ np.linalg.solve(regularized_gram(head, penalty), centered)


@dataclass(frozen=True, eq=False)
class Prediction(DisplayMethods):
    """Limit of federated averaging under the selection rule, and optimum of centralized training.

    Parameters
    ----------
    moments, penalty
        The input of `predict`.
    activity
        Smallest covariance eigenvalue of each client, compared with λ_H λ_W.
    grams
        Optimal Gram G_m of each client, (..., M, C, C).
    barycenter
        Limit G_⋆ with its residual.
    within
        G_within = φ(Σ_within), (..., C, C).
    centralized
        G_cen = φ(Σ_cen), (..., C, C).
    loss_optimum
        Minimum L⋆_m of each local objective, (..., M).

    Examples
    --------
    >>> from fedgram import Moments, Penalty, predict
    >>> moments = Moments(count=[9, 9], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
    >>> prediction = predict(moments, Penalty(features=0.25, head=0.25))
    >>> prediction.fully_active, prediction.grams.tolist()
    (True, [[[0.75]], [[0.75]]])
    >>> prediction
    Prediction(2 clients, 1 target, gap 36%)
    >>> print(prediction.summary().splitlines()[-2])
    2 clients, 18 rows. Targets: target 1. Penalties: lambda_h = 0.25, lambda_w = 0.25.
    >>> prediction.to_frame().query("gram == 'centralized'").value.round(4).tolist()
    [1.1642]
    """

    moments: Moments
    penalty: Penalty
    activity: Activity
    grams: Array
    barycenter: Barycenter
    within: Array
    centralized: Array
    loss_optimum: Array

    def __repr__(self) -> str:
        caveat = "" if self.fully_active else ", not fully active"
        return f"Prediction({self.moments.dimensions}, gap {percent_range(self.relative_gap)}{caveat})"

    @property
    def fully_active(self) -> bool:
        """Whether every client is fully active, as the theorems assume."""
        return bool(self.activity.active.all())

    @property
    def relative_gap(self) -> Array:
        """‖G_⋆ - G_cen‖_F / ‖G_cen‖_F, (...)."""
        return psd.relative_error(self.barycenter.gram, self.centralized)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats as sentences; empty in the fully active regime."""
        return self.client_notes + self.common_notes

    @property
    def client_notes(self) -> tuple[str, ...]:
        """One note for each client that is not fully active."""
        clients = [f"Client '{name}' is" for name in self.moments.clients]
        return self.activity.notes(clients, self.moments.targets)

    @property
    def common_notes(self) -> tuple[str, ...]:
        """Notes that concern all clients."""
        if self.fully_active:
            return ()
        clipped = "Inactive directions were clipped: the three terms of the gap need not be positive."
        if self.activity.active.any(axis=-1).all():
            return (clipped,)
        return clipped, "No client is fully active, so the limit may depend on the start."

    def trajectory(self, initial: Any, rounds: int, proximal: float = 0.0) -> Array:
        """Predict Grams of the shared head in rounds 0..T from an initial Gram (C, C): (T + 1, ..., C, C).

        The recursion is eq. (9), or eq. (B8) with a proximal weight ρ > 0.

        Examples
        --------
        >>> from fedgram import Moments, Penalty, predict
        >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[9.0]]])
        >>> prediction = predict(moments, Penalty(features=0.25, head=0.25))
        >>> prediction.trajectory([[4.0]], rounds=2).round(3).ravel().tolist()
        [4.0, 1.593, 1.593]
        """
        if not is_whole_number(rounds):
            raise InputError(f"rounds must be a whole number, 0 or more, not {rounds}.", field="rounds")
        head = initial_head(initial, len(self.moments.targets))
        if not proximal:
            return trajectory(head, self.grams, self.moments.client_weights, int(rounds))
        return proximal_trajectory(
            head, self.moments.covariance, self.moments.client_weights, self.penalty,
            check_proximal(proximal), int(rounds),
        )  # fmt: skip

    def proximal_limit(self, weight: float) -> Array:
        """Predict the Gram where proximal training with a weight ρ > 0 ends, eq. (B9): (..., C, C).

        It is near the barycenter for small weights, and near G_within for large ones. Training with a large
        weight takes many rounds to get there.

        Examples
        --------
        >>> from fedgram import Moments, Penalty, predict
        >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[9.0]]])
        >>> prediction = predict(moments, Penalty(features=0.25, head=0.25))
        >>> [round(prediction.proximal_limit(weight).item(), 3) for weight in (1e-6, 0.1, 1.0, 1e6)]
        [1.593, 1.608, 1.749, 1.986]
        >>> prediction.barycenter.gram.round(3).item(), prediction.within.round(3).item()
        (1.593, 1.986)
        """
        shape, size = self.barycenter.factor.shape[:-2], len(self.moments.targets)
        limits = np.empty((*shape, size, size))
        for at in np.ndindex(shape):
            head = find_proximal_limit(
                self.barycenter.factor[at], self.moments.covariance[at], self.moments.client_weights[at],
                self.penalty, check_proximal(weight),
            )  # fmt: skip
            limits[at] = psd.gram(head)
        return limits


def initial_head(gram: Any, targets: int) -> Array:
    """Return a head (C, C) with a positive definite Gram (C, C), for C targets."""
    checked = psd.check_psd(gram, "The initial Gram", definite=True)
    if checked.shape != (targets, targets):
        raise InputError(f"The initial Gram must be {targets} by {targets}.", field="initial")
    return psd.factor(checked)


def predict(moments: Moments, penalty: Penalty | None = None) -> Prediction:
    """Predict the limit of federated averaging, eq. (10), and the optimum of centralized training, eq. (7).

    Clients that are not fully active count with φ clipped at zero; `Prediction.notes` names them.

    Parameters
    ----------
    moments
        Target moments of at least two clients.
    penalty
        λ_H and λ_W; `Penalty()` by default.

    Returns
    -------
    Prediction
        Client Grams, barycenter and centralized Gram, (..., C, C) each.

    Raises
    ------
    InputError
        If no client is active along some direction, so that the limit is not defined, or if the centralized
        Gram is zero.

    Examples
    --------
    >>> from fedgram import Moments, Penalty, predict
    >>> moments = Moments(count=[9, 9], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
    >>> prediction = predict(moments, Penalty(features=0.25, head=0.25))
    >>> prediction.barycenter.gram.round(4).tolist(), prediction.centralized.round(4).tolist()
    ([[0.75]], [[1.1642]])
    >>> round(float(prediction.relative_gap), 4)
    0.3558
    """
    check_federation(moments, "predict()")
    penalty = Penalty.or_default(penalty)
    grams = phi(moments.covariance, penalty)
    _check_limit(grams, moments, penalty)
    centralized = phi(moments.pooled.covariance, penalty)
    check_centralized(centralized, moments, penalty)
    return Prediction(
        moments=moments,
        penalty=penalty,
        activity=Activity.from_covariance(moments.covariance, penalty),
        grams=grams,
        barycenter=barycenter(grams, moments.client_weights),
        within=phi(moments.pooled.within, penalty),
        centralized=centralized,
        loss_optimum=local_optimum(moments.covariance, penalty),
    )


def _check_limit(grams: Array, moments: Moments, penalty: Penalty) -> None:
    definite = _is_definite(weighted := average(moments.client_weights, grams))
    if not definite.all():
        at = np.unravel_index(np.argmin(definite), definite.shape)
        direction = np.linalg.eigh(weighted[at])[1][:, 0]
        is_light = bool(_is_definite(grams[at].mean(axis=0)))
        raise _undefined_limit_error(at, direction, is_light, moments, penalty)


def _is_definite(gram: Array) -> Array:
    """Whether Grams (..., C, C) are definite by more than rounding, (...)."""
    values = np.linalg.eigvalsh(gram)
    return np.asarray(values[..., 0] > 4 * gram.shape[-1] * EPS * values[..., -1])


def _undefined_limit_error(
    at: tuple[Any, ...], direction: Array, is_light: bool, moments: Moments, penalty: Penalty
) -> InputError:
    """Build the error about a direction (C,) without a limit; is_light if only weights are too small."""
    covariance, where = moments.covariance[at], describe_direction(direction, moments.targets)
    variance = np.einsum("i,mij,j->m", direction, covariance, direction)
    best = int(variance.argmax())
    client, largest = moments.clients[best], float(np.abs(covariance).max())
    if is_light:
        return InputError(
            f"Along {where} only clients of negligible weight are active, such as '{client}' with "
            f"{moments.client_weights[at][best]:.3g}. Increase their weights, or drop the target.",
            client=client,
            field="weight",
        )
    return InputError(
        f"No client is active along {where}: the largest target variance there, {variance[best]:.6g} at "
        f"client '{client}', {_variance_hint(variance[best], largest, penalty)}",
        client=client,
        field="covariance",
    )


def check_centralized(centralized: Array, moments: Moments, penalty: Penalty) -> None:
    """Raise InputError if a centralized Gram (..., C, C) is zero: no gap is relative to it."""
    active = centralized.any(axis=(-1, -2))
    if active.all():
        return
    largest = np.linalg.eigvalsh(moments.pooled.covariance)[..., -1][~active].min()
    raise InputError(
        f"The pooled data are active in no direction: their largest variance, {largest:.6g}, does not exceed "
        f"lambda_h * lambda_w = {penalty.threshold:.6g}. Use smaller penalties.",
        field="covariance",
    )


def _variance_hint(variance: float, largest: float, penalty: Penalty) -> str:
    if variance <= NEGLIGIBLE_VARIANCE * largest:
        return (
            f"is rounding relative to the largest covariance, {largest:.6g}. Drop a target that others "
            "determine, or give all targets a common scale."
        )
    return (
        f"does not exceed lambda_h * lambda_w = {penalty.threshold:.6g}. Standardize the targets "
        "(--standardize), use smaller penalties, or drop the target."
    )
