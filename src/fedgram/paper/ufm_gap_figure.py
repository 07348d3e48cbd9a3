"""Figure 7: the three terms of the gap G_cen - G_⋆, panels a to j."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import GREY, TERM_COLOURS
from fedgram.paper.experiment import Results
from fedgram.paper.style import TERM_MARKERS, TERM_NAMES, median_band, panels
from fedgram.paper.tables import Table
from fedgram.paper.ufm_gap_claims import FLOOR, SWEEPS
from fedgram.theory.explain import TERMS

STYLES = tuple(zip(TERMS, TERM_COLOURS, TERM_MARKERS, TERM_NAMES, strict=True))
AXES = {"targets": "targets $C$", "clients": "clients $M$", "margin": r"margin bound $\kappa$"}


def draw(results: Results) -> Any:
    """Draw all ten panels: composition in the upper row, semidefiniteness below it."""
    figure, axes = panels(2, 5, (13, 5.4))
    _traces(axes[0], results["controlled"], "means", "(a) means moved apart")
    _traces(axes[1], results["controlled"], "covariances", "(b) covariances moved apart")
    axes[0].legend(loc="upper left")
    for letter, name, axis in zip("cde", SWEEPS, axes[2:5], strict=True):
        _shares(axis, results[name], name)
        axis.set_title(f"({letter}) share of the gap trace")
    _sorted_eigenvalues(axes[5], results["suite"])
    _draw_variance(axes[6], results["suite"])
    for letter, name, axis in zip("hij", SWEEPS, axes[7:10], strict=True):
        _eigenvalues(axis, results[name], name)
        axis.set_title(f"({letter}) smallest eigenvalue")
    axes[7].legend(loc="lower left")
    return figure


def _traces(axis: Any, table: Table, moved: str, title: str) -> None:
    """Trace of each term against the strength s, linear below 1e-3 so that zeros are visible."""
    strengths = np.unique(table["strength"][table["moved"] == moved])
    rows = [(table["moved"] == moved) & (table["strength"] == strength) for strength in strengths]
    for term, colour, marker, label in STYLES:
        samples = np.array([table[f"trace_{term}"][row] for row in rows])
        median_band(axis, strengths, samples, colour, marker=marker, label=label)
    axis.set_yscale("symlog", linthresh=1e-3, linscale=0.5)
    axis.set(xlabel="strength $s$", ylabel="trace", ylim=(-2e-4, 10), title=title)


def _shares(axis: Any, table: Table, name: str) -> None:
    for term, colour, marker, _ in STYLES:
        x, samples = _by_value(table, name, f"share_{term}")
        median_band(axis, x, samples, colour, marker=marker)
    axis.set(xscale="log", ylabel="share of trace", ylim=(0, 1))
    _mark_values(axis, x, name)


def _eigenvalues(axis: Any, table: Table, name: str) -> None:
    """Median with band, and dashed the worst instance of each setting."""
    for term, colour, marker, label in STYLES:
        x, samples = _by_value(table, name, f"eigenvalue_{term}")
        samples = np.maximum(samples, FLOOR)
        median_band(axis, x, samples, colour, marker=marker)
        axis.plot(
            x, samples.min(axis=1), "--", marker=marker, mfc="none", color=colour, label=f"{label} worst"
        )
    axis.set(xscale="log", yscale="log", ylabel=r"$\lambda_{\min}$", ylim=(1e-13, 2))
    _mark_values(axis, x, name)


def _sorted_eigenvalues(axis: Any, table: Table) -> None:
    for term, colour, _, _ in STYLES:
        values = np.sort(np.maximum(table[f"eigenvalue_{term}"], FLOOR))
        axis.plot(np.arange(1, len(values) + 1), values, ".", ms=2, color=colour)
    axis.set(yscale="log", xlabel="instance, sorted", ylabel=r"$\lambda_{\min}$", ylim=(3e-17, 2))
    axis.set_title("(f) sorted smallest eigenvalue")


def _draw_variance(axis: Any, table: Table) -> None:
    """Averaging trace against pairwise dispersion, between the lines D and 2D."""
    dispersion, trace = table["dispersion"], table["trace_averaging"]
    for clients, marker in zip(np.unique(table["clients"]), TERM_MARKERS, strict=True):
        row = table["clients"] == clients
        axis.plot(dispersion[row], trace[row], marker, color=TERM_COLOURS[2], mfc="none", alpha=0.6,
                  label=f"$M={clients}$")  # fmt: skip
    ends = np.array([dispersion.min() / 1.5, dispersion.max() * 1.5])
    axis.plot(ends, ends, color=GREY, lw=0.8, label="$D$")
    axis.plot(ends, 2 * ends, "--", color=GREY, lw=0.8, label="$2D$")
    axis.set(
        xscale="log", yscale="log", xlabel="pairwise dispersion $D$", ylabel=r"$\mathrm{tr}\,\mathcal{M}_A$"
    )
    axis.set_title("(g) averaging term as a variance")
    axis.legend(loc="upper left")


def _by_value(table: Table, name: str, column: str) -> tuple[Array, Array]:
    """The values of the parameter that varies, and a column for each of them (values, instances)."""
    values = np.unique(table[name])
    return values, np.array([table[column][table[name] == value] for value in values])


def _mark_values(axis: Any, values: Array, name: str) -> None:
    """Ticks at the values themselves: they are few, and no powers of ten."""
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(AXES[name])
