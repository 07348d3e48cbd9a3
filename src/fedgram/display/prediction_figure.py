"""Draw a prediction: Gram ellipses and the three terms of the gap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.files import write_bytes
from fedgram._util.text import percent
from fedgram.display.plotting import (
    GREEN,
    INK,
    PALE,
    TERM_COLORS,
    ellipse,
    escape_label,
    figure_suffix,
    new_axes,
    pyplot,
    render,
)
from fedgram.display.result_plots import plot_by_client
from fedgram.display.sentences import parts_of_gap
from fedgram.theory.activity import describe_direction
from fedgram.theory.explain import Gap
from fedgram.theory.predict import Prediction

TERM_LABELS = ("client means", "client covariances", "averaging heads")


def draw_prediction(prediction: Prediction, gap: Gap, path: str | Path, source: str) -> None:
    """Draw Grams as ellipses {G^(1/2) u : |u| = 1} next to the terms of the gap; write png, svg or pdf.

    Two targets give one plane and three give three. More give the plane of the two leading eigenvectors
    of the centralized Gram. With one target only the terms are drawn. `source` labels the data.
    """
    suffix, planes = figure_suffix(path), _planes(prediction)
    figure, axes = _panels(len(planes))
    for axis, (plane, labels) in zip(axes, planes, strict=False):
        _draw_plane(axis, prediction, plane, labels)
    if planes:
        axes[0].legend(loc="upper left", fontsize=8, frameon=False)
    _draw_terms(axes[-1], gap)
    penalty = prediction.penalty
    figure.supxlabel(
        f"{escape_label(source)} · λ_H = {penalty.features:g}, λ_W = {penalty.head:g}",
        fontsize=7,
        color="0.4",
    )
    write_bytes(path, render(figure, suffix, dpi=200))


def plot_prediction(prediction: Prediction, ax: Any = None) -> Any:
    """Draw Grams as ellipses in the plane of the two leading directions; as points with one target."""
    moments = prediction.moments
    if len(moments.targets) == 1:
        return _plot_one_target(prediction, ax)
    ax = new_axes(4.6, 4.8) if ax is None else ax
    _draw_plane(ax, prediction, *_leading_plane(prediction.centralized, moments.targets))
    ax.legend(loc="upper left", fontsize=8, frameon=False)
    return ax


def plot_gap(gap: Gap, ax: Any = None) -> Any:
    """Draw the traces of the three terms."""
    ax = new_axes(4.8, 2.2) if ax is None else ax
    _draw_terms(ax, gap)
    return ax


def _plot_one_target(prediction: Prediction, ax: Any) -> Any:
    moments = prediction.moments
    ax = plot_by_client(moments, prediction.grams[..., 0], ax)
    star, centralized = prediction.barycenter.gram[0, 0], prediction.centralized[0, 0]
    ax.axvline(star, color=GREEN, lw=2.2, label="barycenter $G_{\\bigstar}$")
    ax.axvline(centralized, color=INK, lw=1.8, ls="--", label="centralized $G_{cen}$")
    ax.legend(fontsize=8, frameon=False)
    ax.set_xlabel(f"Gram of {escape_label(moments.targets[0])}")
    return ax


def _panels(planes: int) -> tuple[Any, Any]:
    size = (3.4 * planes + 2.6, 3.9) if planes else (4.8, 2.6)
    widths = [3.4] * planes + [2.2]
    figure, axes = pyplot().subplots(
        1, len(widths), figsize=size, width_ratios=widths, layout="constrained", squeeze=False
    )
    return figure, axes[0]


def _planes(prediction: Prediction) -> list[tuple[Array, tuple[str, str]]]:
    """Return the planes to draw: orthonormal bases (C, 2) with a label for each axis."""
    targets = prediction.moments.targets
    if len(targets) > 3:
        return [_leading_plane(prediction.centralized, targets)]
    pairs = combinations(range(len(targets)), 2)
    return [_target_plane(targets, i, j) for i, j in pairs]


def _target_plane(targets: Sequence[str], i: int, j: int) -> tuple[Array, tuple[str, str]]:
    return np.eye(len(targets))[:, [i, j]], (escape_label(targets[i]), escape_label(targets[j]))


def _leading_plane(gram: Array, targets: Sequence[str]) -> tuple[Array, tuple[str, str]]:
    """Return the plane of the two leading eigenvectors of a Gram (C, C), or that of two targets."""
    if len(targets) == 2:
        return _target_plane(targets, 0, 1)
    basis, labels = np.linalg.eigh(gram)[1][:, :-3:-1], tuple(map(escape_label, targets))
    return basis, (describe_direction(basis[:, 0], labels), describe_direction(basis[:, 1], labels))


def _draw_plane(axis: Any, prediction: Prediction, plane: Array, labels: tuple[str, str]) -> None:
    # The projection of the ellipsoid of G onto a plane with basis V is the ellipse of Vᵀ G V.
    for m, gram in enumerate(prediction.grams):
        outline = ellipse(plane.T @ gram @ plane)
        axis.plot(*outline, color=PALE, lw=1, label="clients" if m == 0 else None)
    axis.plot(
        *ellipse(plane.T @ prediction.barycenter.gram @ plane),
        color=GREEN, lw=2.2, label="barycenter $G_{\\bigstar}$",
    )  # fmt: skip
    axis.plot(
        *ellipse(plane.T @ prediction.centralized @ plane),
        color=INK, lw=1.8, ls="--", label="centralized $G_{cen}$",
    )  # fmt: skip
    reach = 1.1 * max(abs(bound) for bound in (*axis.get_xlim(), *axis.get_ylim()))
    axis.set(
        xlabel=labels[0], ylabel=labels[1], xlim=(-reach, reach), ylim=(-reach, 1.35 * reach), aspect="equal"
    )
    axis.spines[["top", "right"]].set_visible(False)


def _draw_terms(axis: Any, gap: Gap) -> None:
    places = np.arange(3)[::-1]
    traces = np.zeros(3) if gap.negligible else gap.traces
    axis.barh(places, traces, color=TERM_COLORS, height=0.55)
    for place, trace, part in zip(places, traces, parts_of_gap(gap, traces), strict=True):
        axis.text(max(trace, 0.0), place, f" {part}", va="center", fontsize=8)
    axis.set_yticks(places, TERM_LABELS, fontsize=8)
    axis.axvline(0, color="0.2", lw=0.8)
    axis.set(xlabel="trace of the term", xlim=_limits(traces, bool(gap.one_sided)))
    axis.xaxis.set_major_formatter("{x:g}")  # a common factor would overlap the label
    title = "no gap" if gap.negligible else f"gap: {percent(float(gap.relative))}"
    axis.set_title(title, fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _limits(traces: Array, one_sided: bool) -> tuple[float, float]:
    """Return the limits of the bars' axis, with room for their labels."""
    low, high = min(float(traces.min()), 0.0), max(float(traces.max()), 0.0)
    length = high - low or 1.0
    left, right = (0.0, 0.3) if one_sided else (0.1, 0.5)  # amounts are longer than percentages
    return low - left * length, high + right * length
