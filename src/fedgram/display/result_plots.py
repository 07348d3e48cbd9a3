"""Plots of moments, effects, intervals, corrections and heads; each takes Axes or None, and returns Axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.text import number_targets
from fedgram.data.split import Split
from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, PALETTE, ellipse, escape_label, new_axes
from fedgram.theory.correct import Correction
from fedgram.theory.effects import Effects
from fedgram.theory.geometry import psd
from fedgram.theory.geometry.barycenter import Barycenter
from fedgram.theory.intervals import Intervals
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import phi

DEVIATIONS = "pooled standard deviations"
MARKERS = ("o", "s", "D", "^", "v")  # one per round through the palette
MAX_HEIGHT = 40.0  # inches; backends refuse images of more than 65,536 pixels


def plot_by_client(
    moments: Moments, values: Array, ax: Any = None, low: Array | None = None, high: Array | None = None
) -> Any:
    """Draw values (M, C) as points, one row per client and one color per target, with lines low to high."""
    clients, targets = moments.clients, moments.targets
    ax = _client_axes(clients, len(targets)) if ax is None else ax
    for c, (target, color) in enumerate(zip(targets, cycle(PALETTE), strict=False)):
        # the points of a client's targets share its row, 0.6 high
        places = np.arange(len(clients)) + 0.6 * ((c + 0.5) / len(targets) - 0.5)
        marker = MARKERS[c // len(PALETTE) % len(MARKERS)]
        if low is not None and high is not None:
            ax.hlines(places, low[:, c], high[:, c], colors=color, lw=1.5)
        ax.scatter(
            values[:, c], places, color=color, marker=marker, s=18, zorder=3, label=escape_label(target)
        )
    _label_clients(ax, clients)
    if len(targets) > 1:
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def plot_moments(moments: Moments, ax: Any = None) -> Any:
    """Draw each client's target means ± standard deviations, relative to the pooled data."""
    unit = _deviation(moments)
    mean = moments.offset / unit
    spread = np.sqrt(np.einsum("mcc->mc", moments.covariance)) / unit
    ax = plot_by_client(moments, mean, ax, mean - spread, mean + spread)
    ax.axvline(0, color=INK, lw=0.8)
    ax.set_xlabel(f"mean ± standard deviation, in {DEVIATIONS} from the pooled mean", fontsize=8)
    return ax


def plot_effects(effects: Effects, ax: Any = None) -> Any:
    """Draw mean errors with a shared bias; a line leads to the mean error with the correction."""
    moments = effects.prediction.moments
    unit = _deviation(moments) * effects.scale
    shared, corrected = effects.shared.mean_error / unit, effects.corrected.mean_error / unit
    ax = plot_by_client(moments, shared, ax, np.minimum(shared, corrected), np.maximum(shared, corrected))
    ax.axvline(0, color=INK, lw=0.8)
    ax.set_xlabel(f"mean error with a shared bias (line: to the correction), in {DEVIATIONS}", fontsize=8)
    return ax


def plot_intervals(found: Intervals, ax: Any = None) -> Any:
    """Draw mean errors with a shared bias and their intervals."""
    moments = found.gap.prediction.moments
    unit = _deviation(moments)
    low, high = np.moveaxis(found.mean_error / (unit * found.scale)[:, None], -1, 0)
    ax = plot_by_client(moments, -moments.offset / unit, ax, low, high)
    ax.axvline(0, color=INK, lw=0.8)
    ax.set_xlabel(f"mean error with a shared bias, {found.level:.0%} interval, in {DEVIATIONS}", fontsize=8)
    return ax


def plot_correction(correction: Correction, ax: Any = None) -> Any:
    """Draw how far each client's optimal Gram is from the centralized one, without and with correction."""
    moments, places = correction.moments, np.arange(len(correction.moments.clients))
    ax = _client_axes(moments.clients, 1) if ax is None else ax
    before, after = (
        psd.relative_error(grams, correction.centralized)
        for grams in (phi(moments.covariance, correction.penalty), correction.grams)
    )
    ax.hlines(places, after, before, colors=GREY, lw=1.5)
    ax.scatter(before, places, color=GREY, s=22, zorder=3, label="without correction")
    ax.scatter(after, places, color=GREEN, s=22, zorder=3, label=f"strength {correction.strength:g}")
    _label_clients(ax, moments.clients)
    ax.set_xlim(0, None)
    ax.set_xlabel("relative distance of the client's optimal Gram from the centralized Gram", fontsize=8)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def plot_pooled(pooled: Pooled, ax: Any = None) -> Any:
    """Draw the parts of each target's pooled variance that are within and between clients."""
    ax = new_axes(5, min(1.4 + 0.3 * len(pooled.mean), MAX_HEIGHT)) if ax is None else ax
    within, between = np.diag(pooled.within), np.diag(pooled.between)
    total = np.where(within + between > 0, within + between, 1.0)
    places = np.arange(len(total))
    ax.barh(places, within / total, color=GREY, height=0.6, label="within clients")
    ax.barh(places, between / total, left=within / total, color=BLUE, height=0.6, label="between means")
    ax.set_yticks(places, number_targets(len(total)), fontsize=8)
    ax.set(ylim=(len(total) - 0.5, -0.5), xlim=(0, 1))
    ax.set_xlabel("part of the pooled variance", fontsize=8)
    ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_penalty(penalty: Penalty, ax: Any = None) -> Any:
    """Draw the optimal Gram of one target against its standard deviation, eq. (7)."""
    ax = new_axes(4.6, 3.2) if ax is None else ax
    threshold = np.sqrt(penalty.threshold)
    deviation = np.linspace(0.0, 4 * threshold, 201)
    ax.plot(deviation, phi(deviation[:, None, None] ** 2, penalty)[:, 0, 0], color=BLUE, lw=2)
    ax.axvline(threshold, color=GREY, lw=1, ls="--", label=f"inactive up to {threshold:.3g}")
    ax.set_xlabel("standard deviation of a target", fontsize=8)
    ax.set_ylabel("optimal Gram φ", fontsize=8)
    ax.legend(fontsize=8, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_barycenter(barycenter: Barycenter, ax: Any = None) -> Any:
    """Draw the Gram as an ellipse in the plane of its leading directions, or as a segment."""
    ax = new_axes(3.6, 3.6) if ax is None else ax
    values = np.append(np.linalg.eigvalsh(barycenter.gram)[::-1], 0.0)[:2]
    ax.plot(*ellipse(np.diag(np.maximum(values, 0.0))), color=GREEN, lw=2.2)
    ax.set(aspect="equal", xlabel="leading direction", ylabel="second direction")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_head(head: Array, ax: Any = None) -> Any:
    """Draw a head (C, P) as an image with its targets as rows."""
    ax = new_axes(6, min(1.2 + 0.3 * len(head), MAX_HEIGHT)) if ax is None else ax
    limit = np.abs(head).max()
    image = ax.imshow(head, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax)
    ax.set_yticks(np.arange(len(head)), number_targets(len(head)), fontsize=8)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("feature", fontsize=8)
    return ax


def plot_split(split: Split, ax: Any = None) -> Any:
    """Draw the distribution of each target, as a box from quartile to quartile with whiskers."""
    targets = split.targets.shape[1]
    ax = new_axes(5, min(1.4 + 0.3 * targets, MAX_HEIGHT)) if ax is None else ax
    ax.boxplot(
        list(split.targets.T), orientation="horizontal", widths=0.5, showfliers=False,
        tick_labels=number_targets(targets), medianprops={"color": ORANGE},
    )  # fmt: skip
    ax.invert_yaxis()
    ax.set_xlabel(f"targets of {len(split):,} rows", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _deviation(moments: Moments) -> Array:
    """Pooled standard deviations (C,), or 1 for a constant target."""
    deviation = moments.pooled.deviation
    return np.where(deviation > 0, deviation, 1.0)


def _client_axes(clients: Sequence[str], targets: int) -> Any:
    height = 1.2 + max(0.25, 0.09 * targets) * len(clients)
    return new_axes(7.2, min(height, MAX_HEIGHT))


def _label_clients(ax: Any, clients: Sequence[str]) -> None:
    ax.set_yticks(np.arange(len(clients)), [escape_label(name) for name in clients], fontsize=8)
    ax.set_ylim(len(clients) - 0.5, -0.5)  # the first client on top
    ax.spines[["top", "right"]].set_visible(False)
