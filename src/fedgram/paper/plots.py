"""How all figures of the report look."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import GREY

TERM_MARKERS = ("o", "s", "^")
TERM_NAMES = (r"$\mathcal{M}_\mu$", r"$\mathcal{M}_\Sigma$", r"$\mathcal{M}_A$")

SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
}


def panels(rows: int, columns: int, size: tuple[float, float], **keywords: Any) -> tuple[Any, Any]:
    """A figure of size inches with a flat array of its panels."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, **keywords)
    return figure, np.atleast_1d(axes).ravel()


def shades(colour_map: str, count: int) -> list[Any]:
    """Colours of an ordered family of curves, none of them too pale to see."""
    import matplotlib

    return list(matplotlib.colormaps[colour_map](np.linspace(0.15, 0.85, count)))


def median_band(axis: Any, x: Array, samples: Array, colour: Any, **keywords: Any) -> None:
    """Median curve with its interquartile band: samples (len(x), n)."""
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75), axis=1)
    axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axis.plot(x, middle, color=colour, **keywords)


def guide(
    axis: Any, x: Array | list[float], through: tuple[float, float], slope: float, **keywords: Any
) -> None:
    """A straight line of given log-log slope through a point."""
    values = through[1] * (np.asarray(x) / through[0]) ** slope
    axis.plot(x, values, **({"color": GREY, "ls": ":", "lw": 1.0} | keywords))


def log_slope(x: Array, y: Array) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def range_band(axis: Any, x: Any, samples: list[Array], colour: Any, **keywords: Any) -> None:
    """Median curve with a band from least to largest: one array of samples for each x."""
    low, high = [each.min() for each in samples], [each.max() for each in samples]
    axis.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    axis.plot(x, [np.median(each) for each in samples], color=colour, **keywords)


def not_run(axis: Any, *, shared: bool = True) -> None:
    """Say in an empty panel that nothing was run for it; one that shares no axis loses its ticks."""
    axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color=GREY)
    axis.tick_params(left=False, bottom=False, which="both")
    if not shared:
        axis.set(xticks=[], yticks=[])
