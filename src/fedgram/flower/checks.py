"""Check what a client says against what an honest client can say.

A head W has an objective of at least F(W; Σ_m), eq. (6), whatever the network before it. A head that the
selection rule returns for the broadcast W_t has ‖W − W_t‖² ≤ ‖W_t‖² + tr G_m.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.version import __version__
from fedgram.flower.messages import Payload, RejectedReplyError
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import profiled_objective

# Multiples of what theory gives. The largest of honest clients, over 8 procedures on generated targets with
# means up to 30 standard deviations apart: 1.9 for the norm, 0.14 for the step, 0.8 for the bias.
NORM_MULTIPLE, SPREAD_MULTIPLE, BIAS_MULTIPLE = 10.0, 10.0, 3.0

# The bound on objectives is exact; this is for rounding.
OBJECTIVE_TOLERANCE = 1e-6

# A client's moments are in doubt if what it trains to misses them by this fraction, and by this multiple of
# the median client's miss.
DOUBTFUL_MISS, DOUBTFUL_MULTIPLE = 0.5, 5.0


class DivergedError(RejectedReplyError):
    """The client says that its network diverged."""


@dataclass(frozen=True, eq=False)
class ClientInfo:
    """A client's description of itself.

    own_mean μ_m (C,) and own_covariance Σ_m (C, C) of its targets; `network` is a fingerprint.
    """

    client: str
    rows: int
    test_rows: int
    targets: tuple[str, ...]
    parameters: int
    network: str
    own_mean: Array
    own_covariance: Array

    def find_change(self, other: ClientInfo) -> str | None:
        """Compare with a later description."""
        same_mean = np.array_equal(self.own_mean, other.own_mean)
        if self.rows != other.rows or not same_mean or (self.own_covariance != other.own_covariance).any():
            return "rows"
        if self.targets != other.targets:
            return "targets"
        is_same = (self.parameters, self.network) == (other.parameters, other.network)
        return None if is_same else "network"


def read_introduction(payload: Payload, features: int) -> ClientInfo:
    """Check a client's description of itself."""
    given = payload.metadata
    if given["version"] != __version__:
        raise RejectedReplyError(
            f"it runs fedgram {given['version']}, but the server runs {__version__}. Install the same version"
        )
    values = {**given, **payload.arrays, "targets": tuple(given["targets"])}
    info = ClientInfo(**{each.name: values[each.name] for each in fields(ClientInfo)})
    if not 1 <= len(info.targets) <= features:
        raise RejectedReplyError(
            f"features={features} is too small for its {len(info.targets)} targets. Use at least as many"
        )
    try:
        Moments(
            np.array([info.rows]),
            info.own_mean[None],
            info.own_covariance[None],
            (info.client,),
            info.targets,
        )
    except InputError as error:
        raise RejectedReplyError(error.message.rstrip(".")) from None
    return info


@dataclass(frozen=True, eq=False)
class ReturnLimits:
    """Bounds on what one client may return in a round.

    info: its introduction; gram G_m (C, C): the Gram that it trains to; target_mean (C,): the mean of the
    targets that it trains on; target_size: root of tr Σ_cen; penalty: λ_H, λ_W.
    broadcast: head (C, P) and bias (C,) that it received; initial_norm ‖W_0‖².
    spread: median distance of the last returns from that head and bias; None before the second round.
    """

    info: ClientInfo
    gram: Array
    target_mean: Array
    target_size: float
    penalty: Penalty
    broadcast: Mapping[str, Array]
    initial_norm: float
    spread: Mapping[str, float] | None

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
        self._check_head(arrays["head"])
        for name in ("bias", "own_bias", "centered_bias"):
            self._check_bias(name, arrays[name])
        check_objective(float(arrays["local_objective"]), arrays["head"], self.info, self.penalty)

    def _check_head(self, head: Array) -> None:
        optimal, broadcast = float(psd.trace(self.gram)), self.broadcast["head"]
        limit = NORM_MULTIPLE * max(optimal, self.initial_norm)
        norm = float((head**2).sum())
        if norm > limit:
            raise RejectedReplyError(f"its head has a squared norm of {norm:.3g}; the limit is {limit:.3g}")
        if self.spread is None:
            return
        distance = float(psd.frobenius(head - broadcast))
        selected = np.sqrt((broadcast**2).sum() + optimal)
        limit = max(SPREAD_MULTIPLE * self.spread["head"], float(selected))
        if distance > limit:
            raise RejectedReplyError(
                f"its head is {distance:.3g} from the shared one; the limit is {limit:.3g}"
            )

    def _check_bias(self, name: str, bias: Array) -> None:
        reach = self.target_size + float(np.linalg.norm(self.broadcast["bias"] - self.target_mean))
        spread = 0.0 if self.spread is None else self.spread["bias"]
        limit = max(SPREAD_MULTIPLE * spread, BIAS_MULTIPLE * reach)
        distance = float(np.linalg.norm(bias - self.target_mean))
        if distance > limit:
            raise RejectedReplyError(
                f"its {name} is {distance:.3g} from its targets' mean; the limit is {limit:.3g}"
            )


def check_evaluation(reply: Payload, info: ClientInfo, head: Array, penalty: Penalty) -> None:
    """Reject errors that the averaged head (C, P) cannot have."""
    check_objective(float(reply.arrays["objective"]), head, info, penalty)
    for name, rows in (("train_mse", info.rows), ("test_mse", info.test_rows)):
        errors = reply.arrays[name]
        if rows and not (errors >= 0).all():
            raise RejectedReplyError(f"'{name}' is not a mean of squares")
        if not rows and not np.isnan(errors).all():
            raise RejectedReplyError(f"'{name}' has values although it has no such rows")


def check_objective(objective: float, head: Array, info: ClientInfo, penalty: Penalty) -> None:
    """Reject an objective below F(W; Σ_m), which no network has."""
    least = float(profiled_objective(head, info.own_covariance, penalty))
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
