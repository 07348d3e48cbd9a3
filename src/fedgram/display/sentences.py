"""Sentences that state a predicted gap, its causes and its correction."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import join_names, percent, pluralize
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.display.analysis import Analysis
from fedgram.theory.activity import describe_direction
from fedgram.theory.correct import Correction
from fedgram.theory.explain import Gap
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import Barycenter
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import Prediction

CAUSES = (
    "different client means",
    "different client covariances",
    "averaging heads instead of Gram matrices",
)
# Numbers below this fraction of their scale are rounding errors and print as 0.
ROUNDING = 1e-13


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
    moments = prediction.moments
    return (
        f"{len(moments.clients):,} clients, {moments.count.sum():,.0f} rows. Targets: "
        f"{', '.join(moments.targets)}. {penalties(prediction.penalty)}"
    )


def penalties(penalty: Penalty) -> str:
    """State the two penalties."""
    return f"Penalties: lambda_h = {penalty.features:g}, lambda_w = {penalty.head:g}."


def dimensions(moments: Moments) -> str:
    """State the numbers of targets, rows and clients: '2 targets, 768 rows of 3 clients'."""
    rows = f"{moments.count.sum():,.0f} rows of {pluralize(len(moments.clients), 'client')}"
    return f"{pluralize(len(moments.targets), 'target')}, {rows}"


def inputs(problem: Problem) -> str:
    """State the shape of a row's inputs and the number of test rows."""
    first = next(iter(problem.train.values()))
    return f"Inputs {input_shape(first)}; {sum(map(len, problem.test.values())):,} test rows."


def input_shape(split: Split) -> str:
    """Format the shape of a row's inputs: '64 x 64 x 3'."""
    return " x ".join(map(str, split.inputs.shape[1:]))


def mean_variance(pooled: Pooled, targets: Sequence[str]) -> str:
    """State how much of each target's pooled variance comes from different client means."""
    between, variance = np.diag(pooled.between), np.diag(pooled.covariance)
    shares = between / np.where(variance > 0, variance, 1.0)
    shown = (percent(share if share > ROUNDING else 0.0) for share in shares.tolist())
    parts = (f"{name} {share}" for name, share in zip(targets, shown, strict=True))
    return f"Share of the pooled variance that is due to different client means: {', '.join(parts)}."


def residual(star: Barycenter) -> str:
    """State the accuracy of the barycenter."""
    iterations = pluralize(int(star.iterations), "iteration")
    return f"Relative residual of G_⋆: {star.residual:.1e} after {iterations}."


def proximal_limit(prediction: Prediction, weight: float, limit: Array) -> str:
    """Compare the limit of training with a proximal weight with those of small and large weights."""
    away = psd.relative_error(limit, np.stack([prediction.barycenter.gram, prediction.within]))
    star, within = (percent(float(each)) for each in away)
    return (
        f"With the proximal weight {weight:g} training ends {star} away from G_⋆, the limit for small "
        f"weights, and {within} away from G_within, that for large ones."
    )


MATCH = "Federated averaging will match centralized training: the gap is zero up to rounding."
# A gap that pooled clients reach in more than this fraction of samples may be chance.
SIGNIFICANT = 0.05


def outcome(gap: Gap) -> list[str]:
    """State the size of the gap, its causes and how to remove it."""
    if gap.negligible:
        return [MATCH]
    return [
        f"Federated averaging will end {percent(float(gap.relative))} away from centralized training "
        "(relative error of the Gram matrix).",
        causes(gap),
        remedy("fedgram correct"),
    ]


def remedy(command: str) -> str:
    """State how to remove the gap."""
    return f"To remove the gap, each client sends its mean and covariance once ({command})."


def causes(gap: Gap) -> str:
    """State the parts of the three causes."""
    parts = zip(CAUSES, parts_of_gap(gap, gap.traces), strict=True)
    unit = "" if gap.one_sided else f", as parts of its trace {gap.trace:.4g}"
    return f"Causes of the gap{unit}: {', '.join(f'{cause} {part}' for cause, part in parts)}."


def findings(analysis: Analysis) -> list[str]:
    """State the effect on predictions, then the distance between the models, its chance and its causes."""
    gap = analysis.gap
    if gap.negligible:
        return [f"If every site trains until it fits its rows, {MATCH[0].lower()}{MATCH[1:]}"]
    return [
        *mean_errors(analysis),
        *distance(analysis),
        *privacy_noise(analysis),
        causes(gap),
        remedy(correct_command(analysis)),
    ]


def correct_command(analysis: Analysis) -> str:
    """Return the command that corrects this gap, with the same options but without the data."""
    words, penalty = ["fedgram", "correct"], analysis.prediction.penalty
    if penalty != Penalty():
        words += ["--lambda-h", f"{penalty.features:g}", "--lambda-w", f"{penalty.head:g}"]
    if analysis.is_robust:
        words.append("--robust")
    if analysis.is_standardized:
        words.append("--standardize")
    units = zip(analysis.moments.targets, analysis.units, strict=True)
    if pairs := [f"{target}={unit}" for target, unit in units if unit != target]:
        words += ["--units", join_names(pairs)]
    weighted = "" if analysis.moments.is_weighted_by_rows else " with the same weights"
    return shlex.join(words) + weighted


def mean_errors(analysis: Analysis) -> list[str]:
    """State the largest mean error with a shared bias, and what removes it."""
    condition = "If every site trains until it fits its rows, "
    at = _largest_error(analysis)
    if at is None:
        reason = (
            "no site's mean error with a shared bias differs clearly from 0"
            f"{' where there are enough rows' if analysis.few_rows else ''}."
            if analysis.intervals
            else "mean errors with a shared bias are 0: client means are equal."
        )
        return [condition + reason]
    m, c = at
    effects, moments = analysis.effects, analysis.moments
    error = float(effects.shared.mean_error[m, c])
    corrected = float(np.abs(effects.corrected.mean_error).max(axis=0)[c])
    direction = "over-predict" if error > 0 else "under-predict"
    return [
        f"{condition}federated averaging with a shared bias will {direction} {moments.targets[c]} at "
        f"{moments.clients[m]} by {quantity(abs(error), analysis.units[c], moments.targets[c])} on average"
        f"{_error_interval(analysis, m, c)}.",
        f"Keep biases private, or send means and covariances once ({correct_command(analysis)}), and it will "
        f"not: mean errors of {moments.targets[c]} are then 0, or at most {format_digits(corrected)}.",
    ]


def distance(analysis: Analysis) -> list[str]:
    """State the relative gap with its interval, and whether it is more than chance."""
    gap, found = analysis.gap, analysis.intervals
    relative = percent(float(gap.relative))
    meaning = (
        "This relative distance of Gram matrices W W^T compares the two shared heads; it is not an accuracy."
    )
    if found is None:
        return [f"Federated averaging will end {relative} away from centralized training. {meaning}"]
    chance = (
        "centralized training ends at a zero head for half of all samples from one population"
        if np.isnan(found.chance_median)
        else f"equal sites with this many rows would show {percent(found.chance_median)} (median)"
    )
    if found.p_value > SIGNIFICANT:
        return [
            "The rows do not show that federated averaging will end away from centralized training: they "
            f"give {relative}, but {chance}, p = {found.p_value:.2g}. {meaning}"
        ]
    low, high = (percent(float(end)) for end in found.relative)
    interval = (
        f"no interval: in {found.undefined:,} of {found.resamples:,} resamples the latter ends at a zero head"
        if found.undefined
        else f"{found.level:.0%} interval {low} to {high}"
    )
    outside = (
        "Chance differences between few rows add to this estimate; the interval corrects for them. "
        if gap.relative > found.relative[1]
        else ""
    )
    return [
        f"Federated averaging will end {relative} away from centralized training ({interval}). "
        f"{outside}{meaning}",
        f"It is more than chance: {chance}, p = {found.p_value:.2g}.",
    ]


def privacy_noise(analysis: Analysis) -> list[str]:
    """State what the noise of private moments does to the gap."""
    found, privacy = analysis.noise, [each for each in analysis.moments.privacy if each is not None]
    if found is None:
        return []
    low, high = found.relative
    return [
        f"Privacy noise (epsilon {max(each.epsilon for each in privacy):g}) alone leaves it between "
        f"{low:.1%} and {high:.1%} ({found.level:.0%} interval). Sampling and clipping at the bounds add to "
        "this."
    ]


def quantity(value: float, unit: str, target: str) -> str:
    """Format a value with its unit: '23 µg/m³', or '23 (unit of PM2.5)' if the unit is the target's name."""
    return (
        f"{format_digits(value)} (unit of {target})" if unit == target else f"{format_digits(value)} {unit}"
    )


def short(value: Any, scale: Any) -> str:
    """Format a number with three digits, or as 0 if it is a rounding error at this scale."""
    return "0" if abs(value) <= ROUNDING * scale else format_digits(float(value))


def span(interval: Array, scale: Any) -> str:
    """Format an interval (2,): '1.2 to 3.4'."""
    return " to ".join(short(float(end), scale) for end in interval)


def format_digits(value: float, digits: int = 3) -> str:
    """Format significant digits without an exponent for large values: 23.1, 0.00341, 12,300."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(text)) >= 10**digits else text


def _largest_error(analysis: Analysis) -> tuple[int, int] | None:
    """Return client and target of the largest mean error in pooled deviations, among those beyond chance.

    Clients with few rows, whose intervals are too narrow, do not count.
    """
    error = analysis.effects.shared.mean_error
    deviation = analysis.moments.pooled.deviation * analysis.unit_scale
    size = np.abs(error) / deviation
    if analysis.intervals is not None:
        low, high = np.moveaxis(analysis.intervals.mean_error, -1, 0)
        has_rows = ~np.isin(analysis.moments.clients, analysis.few_rows)[:, None]
        size = np.where(((low > 0) | (high < 0)) & has_rows, size, 0.0)
    m, c = np.unravel_index(np.argmax(size), size.shape)
    return (int(m), int(c)) if size[m, c] > ROUNDING else None


def _error_interval(analysis: Analysis, m: int, c: int) -> str:
    if analysis.intervals is None:
        return ""
    low, high = sorted(abs(float(end)) for end in analysis.intervals.mean_error[m, c])
    return f" ({analysis.intervals.level:.0%} interval {format_digits(low)} to {format_digits(high)})"


def client_contributions(gap: Gap, names: Sequence[str], shares: Array | None = None) -> list[str]:
    """List each client's part of the gap with its main cause, largest first; shares (M, 2) are intervals."""
    amounts = gap.by_client.sum(axis=0)
    parts, main = parts_of_gap(gap, amounts), gap.by_client.argmax(axis=0)
    if shares is not None and not np.isnan(shares).any():
        ends = [[percent(float(end)) for end in pair] for pair in shares]
        parts = [f"{part} ({low} to {high})" for part, (low, high) in zip(parts, ends, strict=True)]
    return [f"{names[m]}: {parts[m]}, mainly {CAUSES[main[m]]}" for m in np.argsort(-amounts)]


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
