"""Where federated averaging of a shared head ends, from each client's target moments alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram._util.arrays import EPS, Array, as_float
from fedgram._util.errors import InputError
from fedgram.theory.activity import Activity, describe_direction
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import Barycenter, barycenter, trajectory
from fedgram.theory.geometry.psd import transpose
from fedgram.theory.geometry.weights import average
from fedgram.theory.moments import Moments, check_federation
from fedgram.theory.penalty import Penalty

# A variance below this fraction of the largest covariance is the rounding of others.
NOTHING = 1e-13


def phi(covariance: Array, penalty: Penalty) -> Array:
    """Optimal head Gram φ(T) = α T^(1/2) - λ_H I, eq. (7); inactive eigenvalues are clipped to 0.

    covariance (..., C, C) -> (..., C, C).
    """

    penalty = Penalty.or_default(penalty)

    def optimum(variance: Array) -> Array:
        # (α² s - λ_H²) / (α √s + λ_H): the difference of the two terms without their cancellation.
        root = penalty.scale * np.sqrt(np.maximum(variance, 0.0))
        return np.maximum(variance - penalty.threshold, 0.0) * penalty.scale**2 / (root + penalty.features)

    return psd.spectral(optimum, psd.check_symmetric(covariance, "covariance"))


def local_optimum(covariance: Array, penalty: Penalty) -> Array:
    """L⋆: the least value of the local objective, inactive eigenvalues included. (..., C, C) -> (...)."""
    variance = np.maximum(np.linalg.eigvalsh(covariance), 0.0)
    active = np.sqrt(penalty.threshold * variance) - 0.5 * penalty.threshold
    return np.where(variance > penalty.threshold, active, 0.5 * variance).sum(axis=-1)


def regularized_gram(head: Array, penalty: Penalty) -> Array:
    """A = W Wᵀ + λ_H I: head (..., C, P) -> (..., C, C)."""
    return psd.gram(head) + penalty.features * np.eye(head.shape[-2])


def profiled_objective(head: Array, covariance: Array, penalty: Penalty) -> Array:
    """F(W; T) = λ_H/2 tr(T A⁻¹) + λ_W/2 ‖W‖², eq. (6): head (..., C, P), covariance (..., C, C) -> (...)."""
    fit = psd.trace(np.linalg.solve(regularized_gram(head, penalty), covariance))
    return 0.5 * penalty.features * fit + 0.5 * penalty.head * psd.frobenius(head) ** 2


def conditional_solution(head: Array, targets: Array, penalty: Penalty) -> tuple[Array, Array]:
    """Bias and features that minimise the local objective at a fixed head, Section 4.1.

    head (..., C, P), targets (..., C, N) -> bias μ (..., C), features Wᵀ A⁻¹ (Y - μ 1ᵀ) (..., P, N).
    """
    bias = targets.mean(axis=-1)
    centered = targets - bias[..., None]
    return bias, transpose(head) @ np.linalg.solve(regularized_gram(head, penalty), centered)


@dataclass(frozen=True, eq=False)
class Prediction:
    """The end of federated averaging under the selection rule, beside centralized training.

    grams G_m (..., M, C, C); barycenter G_⋆ with its residual; within G_within and centralized G_cen
    (..., C, C); loss_optimum L⋆_m (..., M); activity of each client.
    """

    moments: Moments
    penalty: Penalty
    activity: Activity
    grams: Array
    barycenter: Barycenter
    within: Array
    centralized: Array
    loss_optimum: Array

    @property
    def fully_active(self) -> bool:
        """Whether every client is fully active, so that the paper's theorems apply as they stand."""
        return bool(self.activity.active.all())

    @property
    def relative_gap(self) -> Array:
        """‖G_⋆ - G_cen‖_F / ‖G_cen‖_F, (...)."""
        return psd.relative_error(self.barycenter.gram, self.centralized)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the numbers do not say by themselves, in sentences; empty in the fully active regime."""
        return self.client_notes + self.common_notes

    @property
    def client_notes(self) -> tuple[str, ...]:
        """The notes that are of one client each: those that are not fully active."""
        clients = [f"Client '{name}' is" for name in self.moments.clients]
        return self.activity.notes(clients, self.moments.targets)

    @property
    def common_notes(self) -> tuple[str, ...]:
        """The notes that are of all clients."""
        if self.fully_active:
            return ()
        clipped = "Inactive directions were clipped: the three terms of the gap need not be positive."
        if self.activity.active.any(axis=-1).all():
            return (clipped,)
        return clipped, "No client is active in every direction, so the limit may depend on the start."

    def trajectory(self, initial: Any, rounds: int) -> Array:
        """Predicted Grams of the shared head over rounds 0..T from one Gram (C, C): (T + 1, ..., C, C)."""
        if not (as_float(rounds) >= 0 and as_float(rounds).is_integer()):
            raise InputError(
                f"The number of rounds must be a whole number, 0 or more, not {rounds}.", field="rounds"
            )
        head = initial_head(initial, len(self.moments.targets))
        return trajectory(head, self.grams, self.moments.client_weights, int(rounds))


def initial_head(gram: Any, targets: int) -> Array:
    """A head (C, C) with this positive definite Gram (C, C), for C targets."""
    checked = psd.check_psd(gram, "The initial Gram", definite=True)
    if checked.shape != (targets, targets):
        raise InputError(f"The initial Gram must be {targets} by {targets}.", field="initial")
    return psd.factor(checked)


def predict(moments: Moments, penalty: Penalty | None = None) -> Prediction:
    """Predict the limit of federated averaging and the optimum of centralized training.

    Clients that are not fully active are computed with φ clipped at zero and named in `notes`; a
    direction in which no client is active is refused, because no limit is defined there, and so are
    pooled data that are active in none, because nothing can be measured by a centralized Gram of zero.
    """
    check_federation(moments)
    penalty = Penalty.or_default(penalty)
    grams = phi(moments.covariance, penalty)
    _refuse_if_undefined(grams, moments, penalty)
    centralized = phi(moments.pooled.covariance, penalty)
    refuse_if_zero(centralized, moments, penalty)
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


def _refuse_if_undefined(grams: Array, moments: Moments, penalty: Penalty) -> None:
    definite = _definite(weighted := average(moments.client_weights, grams))
    if not definite.all():
        at = np.unravel_index(np.argmin(definite), definite.shape)
        direction = np.linalg.eigh(weighted[at])[1][:, 0]
        raise _undefined(at, direction, bool(_definite(grams[at].mean(axis=0))), moments, penalty)


def _definite(gram: Array) -> Array:
    """Whether Grams (..., C, C) are definite by more than rounding, (...)."""
    values = np.linalg.eigvalsh(gram)
    return np.asarray(values[..., 0] > 4 * gram.shape[-1] * EPS * values[..., -1])


def _undefined(
    at: tuple[Any, ...], direction: Array, light: bool, moments: Moments, penalty: Penalty
) -> InputError:
    """Why there is no limit along a direction (C,): light if only the weights of active clients are."""
    covariance, where = moments.covariance[at], describe_direction(direction, moments.targets)
    variance = np.einsum("i,mij,j->m", direction, covariance, direction)
    best = int(variance.argmax())
    client, largest = moments.clients[best], float(np.abs(covariance).max())
    if light:
        return InputError(
            f"Along {where} only light clients are active, as '{client}' with a weight of "
            f"{moments.client_weights[at][best]:.3g}, which rounding loses beside the others; give them "
            "larger weights, or leave out the target.",
            client=client,
            field="weight",
        )
    return InputError(
        f"No client is active along {where}: the largest target variance there, {variance[best]:.6g} at "
        f"client '{client}', {_too_little(variance[best], largest, penalty)}",
        client=client,
        field="covariance",
    )


def refuse_if_zero(centralized: Array, moments: Moments, penalty: Penalty) -> None:
    """Refuse pooled data that are active in no direction, though a light client may be.

    A centralized Gram of zero is no scale for the gap, and nothing that a correction could reach.
    """
    active = centralized.any(axis=(-1, -2))
    if active.all():
        return
    largest = np.linalg.eigvalsh(moments.pooled.covariance)[..., -1][~active].min()
    raise InputError(
        f"The pooled data are active in no direction: their largest variance, {largest:.6g}, does not exceed "
        f"lambda_h * lambda_w = {penalty.threshold:.6g}; use smaller penalties.",
        field="covariance",
    )


def _too_little(variance: float, largest: float, penalty: Penalty) -> str:
    """Why so much variance in a direction is not enough beside the largest covariance, and what helps."""
    if variance <= NOTHING * largest:
        return (
            f"is zero beside the largest covariance, {largest:.6g}, up to rounding; leave out a target that "
            "others determine, or give all targets a common scale."
        )
    return (
        f"does not exceed lambda_h * lambda_w = {penalty.threshold:.6g}; use smaller penalties or leave out "
        "the target."
    )
