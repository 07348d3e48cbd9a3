"""Sentences that state a predicted gap, its causes and its correction."""

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
# Numbers below this fraction of their scale are rounding errors and print as 0.
ROUNDING = 1e-13


def percent(fraction: float) -> str:
    """Format a fraction as a percentage: two significant digits below 10%, else whole percents."""
    value = 100 * fraction
    return f"{value:.0f}%" if abs(value) >= 9.95 else f"{value:.2g}%"


def number(value: float, scale: float) -> str:
    """Format a number with four digits, or as 0 if it is a rounding error at this scale."""
    return "0" if abs(value) <= ROUNDING * scale else f"{value:.4g}"


def parts_of_gap(gap: Gap, amounts: Array) -> list[str]:
    """Format parts of the gap's trace as percentages, or as amounts if one of its terms is negative."""
    scale = float(gap.scale)
    if not gap.one_sided:
        return [number(float(amount), scale) for amount in amounts]
    trace = float(gap.trace)
    return [percent(float(amount) / trace if abs(amount) > ROUNDING * scale else 0.0) for amount in amounts]


def setting(prediction: Prediction) -> str:
    """State the clients, targets and penalties."""
    moments, penalty = prediction.moments, prediction.penalty
    return (
        f"{len(moments.clients)} clients, {moments.count.sum():,.0f} rows. Targets: "
        f"{', '.join(moments.targets)}. Penalties: lambda_h = {penalty.features:g}, "
        f"lambda_w = {penalty.head:g}."
    )


def outcome(gap: Gap) -> list[str]:
    """State the size of the gap, its causes and how to remove it."""
    if gap.negligible:
        return [
            "Federated averaging will match centralized training: client means and covariances are equal."
        ]
    parts = zip(CAUSES, parts_of_gap(gap, gap.traces), strict=True)
    unit = "" if gap.one_sided else f", as parts of its trace {gap.trace:.4g}"
    return [
        f"Federated averaging will end {percent(float(gap.relative))} away from centralized training "
        "(relative error of the Gram matrix).",
        f"Causes of the gap{unit}: {', '.join(f'{cause} {part}' for cause, part in parts)}.",
        "To remove the gap, each client sends its mean and covariance once (see 'fedgram correct').",
    ]


def client_contributions(gap: Gap, names: Sequence[str]) -> list[str]:
    """List each client's part of the gap with its main cause, largest first."""
    amounts = gap.by_client.sum(axis=0)
    parts, causes = parts_of_gap(gap, amounts), gap.by_client.argmax(axis=0)
    return [f"{names[m]}: {parts[m]}, mainly {CAUSES[causes[m]]}" for m in np.argsort(-amounts)]


def target_contributions(gap: Gap, targets: tuple[str, ...]) -> str:
    """State each target's part of the gap, and the direction with the largest part."""
    values, basis = gap.directions
    *parts, largest = parts_of_gap(gap, np.append(np.diag(gap.total), values[0]))
    by_target = ", ".join(f"{name} {part}" for name, part in zip(targets, parts, strict=True))
    leading = describe_direction(basis[:, 0], targets)
    return f"By target: {by_target}. By direction, the largest part is {largest}, along {leading}."


def checks(gap: Gap) -> str:
    """State which identities of the paper the numbers satisfy."""
    chain = "holds" if gap.chain_holds else "does not hold"
    bounds = ""
    if gap.few_pairs and not gap.negligible:
        amounts = (gap.dispersion, gap.traces[2], 2 * gap.dispersion)
        ordered = " <= ".join(number(float(amount), float(gap.scale)) for amount in amounts)
        bounds = f"The pairwise bounds {ordered} {'hold' if gap.bounds_hold else 'do not hold'}. "
    return (
        f"Checks: G_⋆ ≼ Σ p_m G_m ≼ G_within ≼ G_cen {chain}. {bounds}The averaging term equals the "
        f"scatter of the selected heads to {gap.scatter_residual:.1e}."
    )


def correction_plan(correction: Correction) -> list[str]:
    """State what clients and server exchange, what each client adds, and what that achieves."""
    size, strength = correction.centralized.shape[-1], correction.strength
    scaled = "" if strength == 1 else f"{strength:g} times "
    numbers = 1 + size + size * (size + 1) // 2
    return [
        f"Each client sends {numbers} numbers once: its row count, mean and covariance.",
        "The server returns the pooled mean and covariance.",
        f"Each client adds {scaled}the correction term C_m(W) to its loss.",
        _remaining_gap(strength),
        *_feature_offset(correction),
    ]


def _remaining_gap(strength: float) -> str:
    if strength == 1:
        return "After one round of exact local training, the shared head has the centralized Gram matrix."
    if strength == 0:
        return "Strength 0 leaves the whole gap."
    return "A strength below 1 leaves part of the gap."


def _feature_offset(correction: Correction) -> tuple[str, str]:
    largest = float(np.abs(correction.moments.offset).max())
    if correction.strength < 1:
        remedy = "A feature offset gives centralized predictions at strength 1 only."
    else:
        remedy = (
            "To predict like centralized training, each client also adds "
            "W^T (W W^T + lambda_h I)^-1 mean_offset to the bias of its last feature layer."
        )
    return f"Client means differ from the pooled mean by up to {largest:.4g}.", remedy
