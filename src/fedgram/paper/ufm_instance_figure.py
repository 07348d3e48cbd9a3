"""Figure 2: numerical checks on one fixed instance, panels a to f."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, RED, TERM_COLOURS, ellipse
from fedgram.paper.experiment import Results
from fedgram.paper.style import TERM_NAMES, guide, panels, shades
from fedgram.paper.tables import Table
from fedgram.paper.ufm_instance_claims import gram_at, gram_called, rows_of, worst_client
from fedgram.theory.explain import TERMS

FLOOR = 1e-14
REACH = 1.75  # of both ellipse panels, so that they have one coordinate scale
SHOWN_ROUNDS = (0, 1, 2, 18)


def draw(results: Results) -> Any:
    """Draw all six panels."""
    figure, axes = panels(2, 3, (10.5, 6.6))
    _local_training(axes[0], results["adam"], results["grams"])
    _draw_selection(axes[1], results["path"])
    _draw_rounds(axes[2], results["rounds"])
    _shared_grams(axes[3], rows_of(results["rounds"], "proximal", 1e-3), results["grams"])
    _terms(axes[4], results["gap"])
    _draw_correction(axes[5], results["correction"])
    return figure


def _local_training(axis: Any, adam: Table, grams: Table) -> None:
    axis.plot(*ellipse(gram_called(grams, "client 1")), color=GREEN, lw=1.8, label="$G_1$")
    trained = [gram_at(adam, row) for row in range(len(adam["steps"]))]
    _dotted(axis, trained, [f"$E={steps}$" for steps in adam["steps"]])
    axis.set_title("(a) Adam at client 1, no penalty")


def _shared_grams(axis: Any, rounds: Table, grams: Table) -> None:
    axis.plot(*ellipse(gram_called(grams, "limit")), color=GREEN, lw=1.8, label=r"$G_{\bigstar}$")
    axis.plot(*ellipse(gram_called(grams, "centralized")), color=INK, lw=1.4, ls="--", label=r"$G_{cen}$")
    _dotted(axis, [gram_at(rounds, t) for t in SHOWN_ROUNDS], [f"$t={t}$" for t in SHOWN_ROUNDS])
    axis.set_title(r"(d) shared Gram, $\rho=10^{-3}$")


def _dotted(axis: Any, trained: list[Array], labels: list[str]) -> None:
    """Dots trace trained Grams, the later the darker; the legend stands beside the ellipses."""
    colours = shades("plasma_r", len(trained))
    for gram, colour, label in zip(trained, colours, labels, strict=True):
        axis.plot(*ellipse(gram, 49), ".", ms=4, color=colour, label=label)
    axis.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xlabel="target 1", ylabel="target 2")
    axis.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)


def _draw_selection(axis: Any, path: Table) -> None:
    for name, marker, colour, label in (
        ("gram_error", "o", BLUE, "$e_G$"),
        ("selection_error", "s", ORANGE, r"$e_\Pi$"),
    ):
        weights, error = worst_client(path, name)
        axis.plot(weights, error, marker=marker, color=colour, label=label)
    guide(axis, weights, (weights[-1], 1e-6), 1, label="slope one")
    axis.set(xscale="log", yscale="log", xlabel=r"$\rho$", ylabel="relative error, worst client")
    axis.set_title("(b) selection as the penalty vanishes")
    axis.legend(loc="upper left")


def _draw_rounds(axis: Any, rounds: Table) -> None:
    curves = (
        ("L-BFGS", 0.0, RED, "s-", r"L-BFGS, $\rho=0$"),
        ("proximal", 1e-1, ORANGE, "o-", r"$\rho=10^{-1}$"),
        ("proximal", 1e-3, BLUE, "o-", r"$\rho=10^{-3}$"),
        ("exact", 0.0, INK, "--", "exact selection"),
    )
    for procedure, weight, colour, line, label in curves:
        chosen = rows_of(rounds, procedure, weight)
        _curve(axis, chosen["round"], chosen["error"], line, color=colour, label=label)
    _over_rounds(axis, r"relative error to $G_{\bigstar}$", r"(c) distance to $G_{\bigstar}$")
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.72))


def _terms(axis: Any, cases: Table) -> None:
    """Stacked traces of the three terms in each of the four cases."""
    places, base = np.arange(len(cases["case"])), np.zeros(len(cases["case"]))
    for term, colour, name in zip(TERMS, TERM_COLOURS, TERM_NAMES, strict=True):
        trace = np.maximum(cases[term], 0.0)
        axis.bar(places, trace, 0.6, bottom=base, color=colour, label=f"tr {name}")
        for place in places[trace > 0.01]:
            middle = base[place] + trace[place] / 2
            axis.text(place, middle, f"{trace[place]:.2f}", ha="center", va="center", color="w", fontsize=7)
        base = base + trace
    for place in places[base < 0.01]:
        axis.text(place, 0.02, "0", ha="center", va="bottom", color=GREY)
    axis.set_xticks(places, [case.replace(" ", "\n") for case in cases["case"]])
    axis.set(ylabel="trace", title=r"(e) $G_{cen}-G_{\bigstar}$ by its causes")
    axis.legend(loc="upper right")


def _draw_correction(axis: Any, rounds: Table) -> None:
    strengths = np.unique(rounds["strength"])
    for strength, colour in zip(strengths, (GREY, ORANGE, BLUE, GREEN), strict=True):
        chosen, label = rounds["strength"] == strength, rf"$\gamma={strength:g}$"
        _curve(axis, rounds["round"][chosen], rounds["error"][chosen], "o-", color=colour, label=label)
    _over_rounds(axis, r"relative error to $G_{cen}$", "(f) moment correction, exact selection")
    axis.legend(loc="center right")


def _curve(axis: Any, rounds: Array, error: Array, line: str, **keywords: Any) -> None:
    """Errors over rounds, those below the floor drawn on it and not cut in half by the axis."""
    axis.plot(rounds, np.maximum(error, FLOOR), line, clip_on=False, **keywords)


def _over_rounds(axis: Any, label: str, title: str) -> None:
    axis.set(yscale="log", ylim=(FLOOR, 4), xlabel="round", ylabel=label, title=title)
    axis.set_xticks(range(0, 19, 3))
