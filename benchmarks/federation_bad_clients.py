"""Error under one bad client: fedgram's aggregations next to Flower's, in the exact model.

Every client returns the optimal head closest to the broadcast, and the bad one changes its own. After 60
rounds the error is the relative distance of the shared head's Gram to the honest clients' barycenter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum

from fedgram import Moments, Penalty, predict
from fedgram.federation.aggregation import AGGREGATIONS
from fedgram.flower.checks import ReturnLimits
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.messages import Payload, RejectedReplyError
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import barycenter

CLIENTS, FEATURES, TARGETS, ROUNDS, DRAWS = 8, 6, 3, 60, 10

ATTACKS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda head: head,
    "NaN": lambda head: head * np.nan,
    "sign flipped": lambda head: -head,
    "times 1.9": lambda head: 1.9 * head,  # passes the checks: the limit is 2
    "times 3": lambda head: 3 * head,
    "times 1000": lambda head: 1e3 * head,
}
Aggregate = Callable[[np.ndarray], np.ndarray]


def krum(heads: np.ndarray) -> np.ndarray:
    """Select one head as Flower's Krum does, for one bad client."""
    records = [RecordDict({"arrays": ArrayRecord({"head": FlowerArray(head)})}) for head in heads]
    (chosen,) = select_multikrum(records, 1, 1)
    return chosen["arrays"]["head"].numpy()


RULES: Mapping[str, Aggregate] = {
    **{
        name: lambda heads, rule=rule: rule(heads, np.ones(len(heads)), 1)
        for name, rule in AGGREGATIONS.items()
    },
    "Flower's Krum": krum,
    "Flower's trimmed mean": lambda heads: trim_mean(heads, 1.5 / len(heads)),  # drops one at each end
}


def measure_errors() -> dict[str, dict[str, float | None]]:
    """Return the median error over draws, by attack and rule; None for a head that is not finite.

    'mean, checked' refuses what the server's checks refuse.
    """
    errors: dict[str, dict[str, list[float]]] = {attack: {} for attack in ATTACKS}
    for seed in range(DRAWS):
        grams, moments = draw_grams(seed)
        for attack, change in ATTACKS.items():
            for name, rule in RULES.items():
                errors[attack].setdefault(name, []).append(run(grams, change, rule, moments, seed))
            checked = run(grams, change, RULES["mean"], moments, seed, has_checks=True)
            errors[attack].setdefault("mean, checked", []).append(checked)
    return {
        attack: {
            name: None if np.isnan(values).any() else float(np.median(values))
            for name, values in by_rule.items()
        }
        for attack, by_rule in errors.items()
    }


def draw_grams(seed: int) -> tuple[np.ndarray, Moments]:
    """Draw clients of 200 rows with different covariances; return their optimal Grams (M, C, C)."""
    rng = np.random.default_rng(seed)
    mixing = np.eye(TARGETS) + 0.5 * rng.standard_normal((CLIENTS, TARGETS, TARGETS))
    rows = [rng.standard_normal((200, TARGETS)) @ each for each in mixing]
    moments = Moments.from_arrays(rows)
    return predict(moments, Penalty()).grams, moments


def run(
    grams: np.ndarray,
    change: Aggregate,
    rule: Aggregate,
    moments: Moments,
    seed: int,
    has_checks: bool = False,
) -> float:
    """Train; the last client is bad from round 2 on, and honest clients are the others."""
    rng = np.random.default_rng([seed, 1])
    head = initial = 0.1 * rng.standard_normal((TARGETS, FEATURES))
    is_bad = change is not ATTACKS["none"]
    honest = grams[:-1] if is_bad else grams
    suspended, last = False, np.zeros(0)
    for number in range(1, ROUNDS + 1):
        heads = psd.closest_factor(head, grams)
        if number > 1:
            heads[-1] = change(heads[-1])
        if has_checks and not suspended and number > 1:
            spread = float(np.median(np.linalg.norm(last - head, axis=(1, 2))))
            limits = build_limits(grams[-1], moments, head, float((initial**2).sum()), spread)
            suspended = not passes(limits, heads[-1])
        if suspended:
            heads = heads[:-1]
        last, head = heads, rule(heads)
        if not np.isfinite(head).all():
            return float("nan")
    limit = barycenter(honest, np.ones(len(honest)) / len(honest)).gram
    return float(psd.relative_error(psd.gram(head), limit))


def build_limits(
    gram: np.ndarray, moments: Moments, broadcast: np.ndarray, initial: float, spread: float
) -> ReturnLimits:
    """Build the limits of the bad client; the exact model has no optimizer that bounds its step."""
    mean, covariance = moments.mean[-1], moments.covariance[-1]
    info = ClientInfo("bad", 200, 0, 0, moments.targets, 0, "", 0, 0, mean, covariance)
    shared = {"head": broadcast, "bias": moments.pooled.mean}
    size = float(np.sqrt(np.trace(moments.pooled.covariance)))
    spreads = {"head": spread, "bias": 0.0}
    return ReturnLimits(info, gram, mean, size, Penalty(), shared, initial, 0.0, spreads, "solved")


def passes(limits: ReturnLimits, head: np.ndarray) -> bool:
    """Whether the server's checks accept a head; all else of the reply is in order."""
    biases = dict.fromkeys(("bias", "own_bias", "centered_bias"), limits.target_mean)
    scalars = {"local_objective": 1e9, "clipped": 0.0, "loss": 1.0, "diverged": 0.0}
    if not np.isfinite(head).all():  # refused when the reply is decoded
        return False
    try:
        limits.check(Payload({"head": head, **biases, **scalars}, {"after": 0}), 2)
    except RejectedReplyError:
        return False
    return True
