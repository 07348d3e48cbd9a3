"""Every figure of the network experiments by the experiment's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedgram.display import plotting
from fedgram.display.plotting import pyplot
from fedgram.paper.networks.figures_beyond import draw_predictions, draw_solved
from fedgram.paper.networks.figures_main import draw_main
from fedgram.paper.networks.figures_scope import (
    draw_alignment,
    draw_architecture,
    draw_full_model,
    draw_prediction,
)
from fedgram.paper.networks.figures_sweeps import draw_epochs, draw_means, draw_weights
from fedgram.paper.networks.results import Results
from fedgram.paper.style import SETTINGS

Drawn = Any | dict[str, Any]
"""A matplotlib figure, or several by name."""


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """The same drawing in the look of the report."""

    def drawn(*arguments: Any) -> Any:
        with pyplot().rc_context(SETTINGS):
            return draw(*arguments)

    drawn.__doc__ = draw.__doc__
    return drawn


FIGURES: dict[str, Callable[[Results], Drawn]] = {
    "dnn-main": styled(draw_main),
    "dnn-means": styled(draw_means),
    "dnn-epochs": styled(draw_epochs),
    "dnn-rho": styled(draw_weights),
    "dnn-alignment": styled(draw_alignment),
    "dnn-architecture": styled(draw_architecture),
    "dnn-full-model": styled(draw_full_model),
    "dnn-prediction": styled(draw_prediction),
    "beyond-solved": styled(draw_solved),
    "beyond-prediction": styled(draw_predictions),
}
"""Experiment -> a function of results that draws its figure, or its figures by name."""


def figures_of(name: str, results: Results) -> dict[str, Any]:
    """The figures of an experiment by name, None where nothing of it was run; a single one has no name."""
    drawn = FIGURES[name](results)
    return drawn if isinstance(drawn, dict) else {"": drawn}


rendered = styled(plotting.rendered)
"""Figure and suffix -> the content of a file."""
