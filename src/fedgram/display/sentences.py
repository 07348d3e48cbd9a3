"""Predictions in words: what will happen, why, and what to do, for a person with data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.activity import describe_direction
from fedgram.theory.correct import Correction
from fedgram.theory.explain import Gap
from fedgram.theory.predict import Prediction

CAUSES = (
    "different client means",
    "different client covariances",
    "averaging heads instead of Gram matrices",
)
# A number this small is the rounding of those that it is made of, relative to them.
ROUNDING = 1e-13


def no_gap(gap: Gap) -> bool:
    """Whether federated averaging ends where centralized training does, up to rounding."""
    return bool(gap.negligible)


def percent(fraction: float) -> str:
    """A fraction as a percentage with two significant digits, and no more than whole percents."""
    value = 100 * fraction
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.2g} %"


def number(value: float, scale: float) -> str:
    """A number with four digits, and 0 where it is only the rounding of numbers of this scale."""
    return "0" if abs(value) <= ROUNDING * scale else f"{value:.4g}"


def share(amount: float, gap: Gap) -> str:
    """A part of the gap's trace as a percentage, and 0 where it is only the rounding of Gram matrices."""
    return percent(amount / float(gap.trace) if abs(amount) > ROUNDING * gap.scale else 0.0)


def setting(prediction: Prediction) -> str:
    """Who takes part, under which penalties."""
    moments, penalty = prediction.moments, prediction.penalty
    return (
        f"{len(moments.clients)} clients, {moments.count.sum():,.0f} rows, targets "
        f"{', '.join(moments.targets)}; lambda_h = {penalty.features:g}, lambda_w = {penalty.head:g}."
    )


def outcome(gap: Gap) -> list[str]:
    """Where federated averaging ends, why, and what removes the difference."""
    if no_gap(gap):
        return ["Federated averaging will end where centralized training does: the clients' means and "
                "covariances agree."]  # fmt: skip
    parts = [f"{part} from {cause}" for part, cause in zip(in_parts(gap, gap.traces), CAUSES, strict=True)]
    whole = "that" if gap.one_sided else f"the difference's trace, {gap.trace:.4g},"
    parts[0] = parts[0].replace(" from", f" of {whole} comes from")
    return [
        f"Federated averaging will end {percent(float(gap.relative))} away from centralized training.",
        f"{parts[0]}, {parts[1]}, and {parts[2]}.",
        "Sending each client's mean and covariance once removes it (fedgram correct).",
    ]


def clients_behind(gap: Gap, names: Sequence[str]) -> list[str]:
    """The clients in the order of their share in the gap, each with its main cause."""
    amounts = gap.by_client.sum(axis=0)
    parts, causes = in_parts(gap, amounts), gap.by_client.argmax(axis=0)
    return [f"{names[m]}: {parts[m]}, mostly {CAUSES[causes[m]]}" for m in np.argsort(-amounts)]


def directions_behind(gap: Gap, targets: tuple[str, ...]) -> str:
    """Where in target space the gap lies."""
    values, basis = gap.directions
    leading = describe_direction(basis[:, 0], targets)
    parts = in_parts(gap, np.append(np.diag(gap.total), values[0]))
    listed = ", ".join(f"{name} {part}" for name, part in zip(targets, parts, strict=False))
    return f"By target: {listed}. {parts[-1]} of it lies along {leading}."


def in_parts(gap: Gap, amounts: Array) -> list[str]:
    """Parts of the gap's trace: shares of it, or the amounts where some of its terms are negative."""
    if gap.one_sided:
        return [share(float(amount), gap) for amount in amounts]
    return [number(float(amount), float(gap.scale)) for amount in amounts]


def checks(gap: Gap) -> str:
    """Which of the paper's identities these numbers satisfy, and how well."""
    chain = "holds" if gap.chain_holds else "does not hold"
    return (
        f"Checks: the ordering G_star <= sum p G <= G_within <= G_cen {chain}; {_bounds(gap)}the averaging "
        f"term equals the scatter of the selected heads to {gap.scatter_residual:.1e}."
    )


def _bounds(gap: Gap) -> str:
    if no_gap(gap) or not gap.few_pairs:
        return ""
    amounts = (gap.dispersion, gap.traces[2], 2 * gap.dispersion)
    ordered = " <= ".join(number(float(amount), float(gap.scale)) for amount in amounts)
    return f"the pairwise bounds {ordered} {'hold' if gap.bounds_hold else 'do not hold'}; "


def correction_plan(correction: Correction) -> list[str]:
    """What the exchange costs, and what each client does with it."""
    size = correction.centralized.shape[-1]
    return [
        f"Each client sends {1 + size + size * (size + 1) // 2} numbers once: count, mean and covariance.",
        "The server sends back the pooled mean and covariance; each client adds "
        f"{correction.strength:g} C_m to its loss.",
        _recovered(correction.strength),
        _client_means(correction),
    ]


def _recovered(strength: float) -> str:
    if strength == 1:
        return "After one round with exact selection the shared head has the centralized Gram matrix."
    if strength == 0:
        return "A strength of 0 leaves the whole gap."
    return "A strength below 1 leaves part of the gap."


def _client_means(correction: Correction) -> str:
    largest = float(np.abs(correction.moments.offset).max())
    differ = f"Client means differ from the pooled mean by up to {largest:.4g}"
    if correction.strength < 1:
        return f"{differ}; a feature offset makes predictions centralized at strength 1 only."
    return (
        f"{differ}: for centralized predictions each client also adds W^T (W W^T + lambda_h I)^-1 "
        "mean_offset to its last feature layer's bias."
    )
