"""Check what a client says against what an honest client can say.

A head W has an objective of at least F(W; Σ_m), eq. (6), whatever the network before it. A head that the
selection rule returns for the broadcast W_t has ‖W‖² = tr G_m and ‖W − W_t‖² ≤ ‖W_t‖² + tr G_m. Of all heads
with its Gram it has the largest ⟨W, W_t⟩, so its alignment, the ratio of both, is 1; that of −W is −1. A head
that was trained for few steps is no farther from W_t than its optimizer reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.messages import (
    ALONE_ERRORS,
    BACKBONE,
    TRAINING_SUMS,
    Payload,
    RejectedReplyError,
    read_sums,
)
from fedgram.nets.optimizer import FIRST_DECAY, SECOND_DECAY
from fedgram.runs.joining import ALONE_MSE, CHANGE_HIGH, CHANGE_LOW
from fedgram.runs.procedure import Return
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import local_optimum, profiled_objective

# A head is at most this many times as long as the longer of its optimum and the broadcast. The path of
# training leads from one to the other; `benchmarks/federation_honest_clients.py` has the largest overshoot.
LENGTH_MULTIPLE = 2.0

# Multiples of the last median step, and of a bias's reach. Honest clients used 0.14 of the step's limit and
# 0.8 of the reach (8 procedures, generated targets with means up to 30 standard deviations apart).
SPREAD_MULTIPLE, BIAS_MULTIPLE = 10.0, 3.0

# Honest clients had an alignment of at least 0.96 in 144 runs (11 procedures, 1 to 20 epochs, up to ten times
# the default learning rate), and of 0.03 in one of 12 runs with 30 times that rate and noisy targets.
LEAST_ALIGNMENT = -0.25

# A head below this part of the usual squared norm may point anywhere: it is optimizer noise where no
# direction of the targets is active (up to 0.0025 of the norm after the first round), and cannot harm.
NEGLIGIBLE = 0.01

# The bound on objectives is exact; this is for rounding.
OBJECTIVE_TOLERANCE = 1e-6

# Rounding of parameters to single precision, relative to the optimizer's reach.
REACH_TOLERANCE = 1e-3

# Rounding of sums, relative to their scale: they are in double precision.
SUMS_TOLERANCE = 1e-6

# A client's moments are in doubt if what it trains to misses them by this fraction, and by this multiple of
# the median client's miss.
DOUBTFUL_MISS, DOUBTFUL_MULTIPLE = 0.5, 5.0


class DivergedError(RejectedReplyError):
    """The client says that its network diverged."""


@dataclass(frozen=True, eq=False)
class ReturnLimits:
    """Bounds on what one client may return in a round.

    info: its introduction; gram G_m (C, C): the Gram that it trains to; target_mean (C,): the mean of the
    targets that it trains on; target_size: root of tr Σ_cen; penalty: λ_H, λ_W.
    broadcast: head (C, P) and bias (C,) that it received, and the shared backbone and feature layer of a
    full model from round 2 on; initial_norm ‖W_0‖²; reach: how far its optimizer can move a parameter.
    spread: median distance of the last returns from that head and bias; None before the second round.
    returned: whether its head is trained, aligned or solved.
    """

    info: ClientInfo
    gram: Array
    target_mean: Array
    target_size: float
    penalty: Penalty
    broadcast: Mapping[str, Array]
    initial_norm: float
    reach: float
    spread: Mapping[str, float] | None
    returned: Return = "trained"

    def check(self, reply: Payload, number: int) -> None:
        """Reject a training reply of a round that no honest client sends."""
        arrays = reply.arrays
        if arrays["diverged"] not in (0.0, 1.0):
            raise RejectedReplyError("'diverged' is neither 0 nor 1")
        if arrays["diverged"]:
            raise DivergedError("its network diverged")
        if not np.isfinite(arrays["loss"]):
            raise RejectedReplyError("'loss' has a value that is not finite")
        if not 0 <= reply.metadata["after"] < number:
            raise RejectedReplyError(f"'after' is not a round before round {number}")
        if arrays["clipped"] not in range(len(self.info.targets) + 1):
            raise RejectedReplyError("'clipped' is not a number of targets")
        if "local_error" in arrays:
            check_validation_errors(arrays["local_error"], self.info)
        if "head" in arrays:
            self._check_head(arrays["head"])
            for name in ("bias", "own_bias", "centered_bias"):
                self._check_bias(name, arrays[name])
        for name in BACKBONE.keys() & arrays.keys() & self.broadcast.keys():
            self._check_moves(name, arrays[name])
        check_objective(float(arrays["local_objective"]), arrays.get("head"), self.info, self.penalty)

    def _check_moves(self, name: str, values: Array) -> None:
        moved = float(np.abs(values - self.broadcast[name]).max(initial=0.0))
        if moved > self.reach:
            raise RejectedReplyError(
                f"its {name} moved by {moved:.3g}; its optimizer can move a parameter by {self.reach:.3g}"
            )

    def _check_head(self, head: Array) -> None:
        optimal, broadcast = float(psd.trace(self.gram)), self.broadcast["head"]
        norm, usual = float((head**2).sum()), max(optimal, self.initial_norm)
        limit = LENGTH_MULTIPLE**2 * max(optimal, float((broadcast**2).sum()), NEGLIGIBLE * usual)
        if norm > limit:
            raise RejectedReplyError(f"its head has a squared norm of {norm:.3g}; the limit is {limit:.3g}")
        alignment = measure_alignment(head, broadcast)
        if alignment < LEAST_ALIGNMENT and norm > NEGLIGIBLE * usual:
            raise RejectedReplyError(
                f"its head points away from the shared one: alignment {alignment:.2f}, the limit is "
                f"{LEAST_ALIGNMENT}"
            )
        distance, limit = float(psd.frobenius(head - broadcast)), min(self._step_limits(optimal))
        if distance > limit:
            raise RejectedReplyError(
                f"its head is {distance:.3g} from the shared one; the limit is {limit:.3g}"
            )

    def _step_limits(self, optimal: float) -> Iterator[float]:
        """Yield bounds on the distance from the broadcast: by the selection rule, and by the optimizer."""
        broadcast = self.broadcast["head"]
        if self.spread is not None:
            selected = float(np.sqrt((broadcast**2).sum() + optimal))
            yield max(SPREAD_MULTIPLE * self.spread["head"], selected)
        # An aligned head is at most as far away as the trained one.
        yield np.inf if self.returned == "solved" else self.reach * float(np.sqrt(broadcast.size))

    def _check_bias(self, name: str, bias: Array) -> None:
        reach = self.target_size + float(np.linalg.norm(self.broadcast["bias"] - self.target_mean))
        spread = 0.0 if self.spread is None else self.spread["bias"]
        limit = max(SPREAD_MULTIPLE * spread, BIAS_MULTIPLE * reach)
        distance = float(np.linalg.norm(bias - self.target_mean))
        if distance > limit:
            raise RejectedReplyError(
                f"its {name} is {distance:.3g} from its targets' mean; the limit is {limit:.3g}"
            )


def measure_alignment(head: Array, broadcast: Array) -> float:
    """Return ⟨W, W_t⟩ over its maximum for heads with the Gram of W, between -1 and 1; 1 if that is zero."""
    largest = float((psd.closest_factor(broadcast, psd.gram(head)) * broadcast).sum())
    return float((head * broadcast).sum()) / largest if largest > 0 else 1.0


def optimizer_reach(config: TrainConfig, rows: int) -> float:
    """Return how far AdamW can move a parameter in a round of T steps.

    By Cauchy's inequality for its two moments, step t is at most the learning rate times
    √(1 - β₂ᵗ) / (1 - β₁ᵗ) · (1 - β₁) / √(1 - β₂) · √(Σ_{j<t} (β₁²/β₂)ʲ), which grows with t, from 1 at t = 1.
    """
    steps = config.epochs * -(-rows // config.batch)
    rate = max(config.learning_rate, config.final_learning_rate)
    first, second, ratio = FIRST_DECAY, SECOND_DECAY, FIRST_DECAY**2 / SECOND_DECAY
    correction = np.sqrt(1 - second**steps) / (1 - first**steps)
    moments = (1 - first) / np.sqrt(1 - second) * np.sqrt((1 - ratio**steps) / (1 - ratio))
    return float((1 + REACH_TOLERANCE) * steps * rate * correction * moments)


def find_distant_starts(
    returned: Mapping[str, Mapping[str, Array]], limits: Mapping[str, ReturnLimits]
) -> dict[str, str]:
    """Find clients whose first backbone is too far from the median one; return why.

    All start from the same parameters, so two honest clients differ by at most the sum of their reaches.
    """
    reach = 2 * max((limits[client].reach for client in returned), default=0.0)
    reasons = {}
    for name in BACKBONE:
        values = {client: arrays[name] for client, arrays in returned.items() if name in arrays}
        center = np.median(list(values.values()), axis=0) if values else None
        for client, each in values.items():
            distance = float(np.abs(each - center).max(initial=0.0))
            if distance > reach:
                reasons[client] = (
                    f"its {name} is {distance:.3g} from the median client's; the common start allows "
                    f"{reach:.3g}"
                )
    return reasons


def check_evaluation(reply: Payload, info: ClientInfo, head: Array | None, penalty: Penalty) -> None:
    """Reject errors and sums that the averaged head (C, P) cannot have; None for a client's own head."""
    arrays = reply.arrays
    check_objective(float(arrays["objective"]), head, info, penalty)
    for name, rows in (("train_mse", info.rows), ("test_mse", info.test_rows)):
        check_mean_squares(name, arrays[name], rows)
    if "validation_error" in arrays:
        check_validation_errors(arrays["validation_error"], info)
    if TRAINING_SUMS in arrays:
        training, validation = read_sums(arrays, len(info.own_mean))
        check_sums(training, info.rows)
        check_sums(validation, info.validation_rows)
        check_target_sums(training, info)


def check_mean_squares(name: str, errors: Array, rows: int) -> None:
    """Reject errors that are negative, or missing although there are rows."""
    if rows and not (errors >= 0).all():
        raise RejectedReplyError(f"'{name}' is not a mean of squares")
    if not rows and not np.isnan(errors).all():
        raise RejectedReplyError(f"'{name}' has values, but the client has no such rows")


def check_validation_errors(errors: Array, info: ClientInfo) -> None:
    """Reject sums of squares that are negative, or not zero without validation rows."""
    if not (errors >= 0).all():
        raise RejectedReplyError("its validation error is not a sum of squares")
    if not info.validation_rows and errors.any():
        raise RejectedReplyError("it has a validation error but no validation rows")


def check_sums(sums: FeatureSums, rows: int) -> None:
    """Reject sums that no rows have: their matrix [n, Σu, Σy; ...] must be positive semidefinite."""
    if sums.count != rows:
        raise RejectedReplyError(f"its sums are over {float(sums.count):g} rows, not {rows}")
    matrix = sums.matrix
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    correlation = inverse[:, None] * matrix * inverse
    is_zero_elsewhere = not matrix[scale == 0].any()
    if not is_zero_elsewhere or np.linalg.eigvalsh(correlation)[0] < -SUMS_TOLERANCE:
        raise RejectedReplyError("its sums are not those of any rows")


def check_target_sums(sums: FeatureSums, info: ClientInfo) -> None:
    """Reject sums over training rows with other target moments than the client introduced itself with."""
    second = info.own_covariance + np.outer(info.own_mean, info.own_mean)
    scale = np.sqrt(np.diagonal(second))
    mean_miss = np.abs(sums.target_mean - info.own_mean)
    second_miss = np.abs(sums.targets_targets / info.rows - second)
    if (mean_miss > SUMS_TOLERANCE * scale).any() or (
        second_miss > SUMS_TOLERANCE * np.outer(scale, scale)
    ).any():
        raise RejectedReplyError("its sums have other target moments than its introduction")


def check_blend(reply: Payload, info: ClientInfo) -> None:
    """Reject sums of a comparison that no validation rows have."""
    check_validation_errors(reply.arrays["errors"], info)
    difference, agreement = reply.arrays["difference"], reply.arrays["agreement"]
    if (difference < 0).any() or (agreement[difference == 0] != 0).any():
        raise RejectedReplyError("'difference' is not a sum of squares")
    if not info.validation_rows and (difference.any() or agreement.any()):
        raise RejectedReplyError("it compares models on validation rows but has none")
    alone = reply.arrays[ALONE_ERRORS]
    if (alone < 0).any() or (alone.any() and not info.test_rows):
        raise RejectedReplyError(f"'{ALONE_ERRORS}' are not sums of squares over its test rows")


def check_finish(reply: Payload, info: ClientInfo, rounds: int) -> None:
    """Reject a test error, share or round that no chosen model has."""
    check_mean_squares("test_mse", reply.arrays["test_mse"], info.test_rows)
    if not 0 <= reply.arrays.get("local_share", 0.0) <= 1:
        raise RejectedReplyError("'local_share' is not between 0 and 1")
    if (alone := reply.arrays.get(ALONE_MSE)) is not None:
        if alone < 0:  # NaN if this network diverged
            raise RejectedReplyError(f"'{ALONE_MSE}' is negative")
        low, high = reply.arrays[CHANGE_LOW], reply.arrays[CHANGE_HIGH]
        if low < -1 or low > high:
            raise RejectedReplyError(f"'{CHANGE_LOW}' is below -1 or above '{CHANGE_HIGH}'")
    if not 1 <= reply.metadata["chosen"] <= rounds:
        raise RejectedReplyError(f"'chosen' is not a round up to {rounds}")


def check_objective(objective: float, head: Array | None, info: ClientInfo, penalty: Penalty) -> None:
    """Reject an objective below F(W; Σ_m), which no network has; below its minimum, for an unknown head."""
    least = float(
        local_optimum(info.own_covariance, penalty)
        if head is None
        else profiled_objective(head, info.own_covariance, penalty)
    )
    if not objective >= (1 - OBJECTIVE_TOLERANCE) * least:
        raise RejectedReplyError(
            f"its objective {objective:.3g} is below {least:.3g}, the least that its moments allow"
        )


def find_doubtful_moments(
    returned: Mapping[str, Mapping[str, Array]], limits: Mapping[str, ReturnLimits]
) -> dict[str, str]:
    """Find clients that train to other moments than they introduced themselves with; return why."""
    misses = {
        client: {
            "covariance": float(psd.relative_error(psd.gram(arrays["head"]), limits[client].gram)),
            "mean": float(
                np.linalg.norm(arrays["centered_bias"] - limits[client].target_mean)
                / np.sqrt(psd.trace(limits[client].info.own_covariance))
            ),
        }
        for client, arrays in returned.items()
    }
    doubts = {}
    for moment in ("covariance", "mean"):
        typical = float(np.median([each[moment] for each in misses.values()]))
        for client, each in misses.items():
            if each[moment] > max(DOUBTFUL_MISS, DOUBTFUL_MULTIPLE * typical):
                doubts[client] = (
                    f"its network misses its {moment} by {each[moment]:.2g} (median of all clients: "
                    f"{typical:.2g})"
                )
    return doubts
