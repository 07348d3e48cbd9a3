"""Figure 17: numerical checks of finite-step profiled dynamics, panels a to e."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram.display.plotting import BLUE, GREEN, GREY, ORANGE
from fedgram.paper.experiment import Results
from fedgram.paper.style import guide, median_band, panels, shades
from fedgram.paper.tables import Table

# The medians of the first two differ by a thousandth: a broad curve under a thin one shows both.
FAMILY_STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "generic": (BLUE, {"marker": "o", "ms": 7, "lw": 3.5}),
    "repeated": (ORANGE, {"marker": "s", "ms": 3}),
    "near_threshold": (GREEN, {"marker": "^", "ms": 4.5}),
}


def draw(results: Results) -> Any:
    """Draw all five panels."""
    figure, axes = panels(1, 5, (15, 3.2))
    _distances(axes[0], results["sweep"], shift=0)
    axes[0].set(title="(a) fixed points against local steps", xlabel=r"local steps $E$")
    axes[0].legend(title=r"$\eta$", loc="lower left")
    _distances(axes[1], results["sweep"], shift=1)
    guide(axes[1], [2e-2, 1.0], (0.1, 0.03), 1)
    axes[1].set(title=r"(b) the same against $\eta(E-1)$", xlabel=r"$\eta(E-1)$")
    _rounds(axes[2], results["sweep"])
    _ratios(axes[3], results["displacement"])
    _rates(axes[4], results["stability"])
    return figure


def _distances(axis: Any, table: Table, shift: int) -> None:
    """Normalised distances to G_within (circles, solid) and G_⋆ (squares, dashed)."""
    rates = np.unique(table["rate"])
    for rate, colour in zip(rates, shades("viridis", len(rates)), strict=True):
        steps = np.unique(table["steps"][table["steps"] > shift])
        x = rate * (steps - 1) if shift else steps
        for name, marker, line in (("to_within", "o", "-"), ("to_star", "s", "--")):
            rows = [(table["rate"] == rate) & (table["steps"] == count) for count in steps]
            y = [np.median(table[name][row]) for row in rows]
            axis.plot(x, y, line, marker=marker, color=colour, label=f"{rate:g}" if line == "-" else None)
    axis.set(xscale="log", yscale="log", ylim=(5e-5, 3))
    axis.set_ylabel(r"$d_{BW}$ / $d_{BW}(G_{within}, G_{\bigstar})$")


def _rounds(axis: Any, table: Table) -> None:
    rates = np.unique(table["rate"])
    for rate, colour in zip(rates, shades("viridis", len(rates)), strict=True):
        steps = np.unique(table["steps"])
        rows = [(table["rate"] == rate) & (table["steps"] == count) for count in steps]
        axis.plot(rate * steps, [np.median(table["rounds"][row]) for row in rows], "o-", color=colour)
    guide(axis, [2e-2, 2.0], (0.02, 3698), -1)
    axis.set(
        xscale="log", yscale="log", xlabel=r"$\eta E$", ylabel="rounds", title="(c) rounds to the fixed point"
    )


def _ratios(axis: Any, table: Table) -> None:
    rates = np.unique(table["rate"])
    for rate, colour in zip(rates, shades("plasma", len(rates)), strict=True):
        for sign, marker in ((1, "^"), (-1, "v")):
            row = (table["rate"] == rate) & (np.sign(table["predicted"]) == sign)
            x, y = (table["rate"] * table["steps"])[row], (table["measured"] / table["predicted"])[row]
            axis.plot(x, y, marker, color=colour, alpha=0.7, label=f"{rate:g}" if sign > 0 else None)
    axis.axhline(1, color=GREY, lw=0.8)
    axis.set(xscale="log", xlabel=r"$h=\eta E$", ylabel=r"measured / $\eta(E-1)\Delta_i$")
    axis.set_title("(d) displacement, ▲ positive, ▼ negative")
    axis.legend(title=r"$\eta$", loc="lower left")


def _rates(axis: Any, table: Table) -> None:
    error = np.abs(table["radius"] - table["predicted"])
    h = np.unique(table["h"])
    for family, (colour, style) in FAMILY_STYLES.items():
        samples = np.array([error[(table["family"] == family) & (table["h"] == value)] for value in h])
        median_band(axis, h, samples, colour, label=family.replace("_", " "), **style)
    guide(axis, h, (h[0], 3e-10), 2)
    axis.set(xscale="log", yscale="log", xlabel=r"$h=\eta E$", ylabel=r"|spr $-\,(1-2h\theta_{min})|$")
    axis.set_title("(e) local convergence rate")
    axis.legend(loc="upper left")
