"""The network experiments as data: what is trained, where the paper reports it, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.display import plotting
from fedgram.display.plotting import pyplot
from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import Cohort
from fedgram.paper.networks.comparable import ComparableRuns
from fedgram.paper.networks.metrics import Found
from fedgram.paper.networks.results import Results, RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import Source, Variety
from fedgram.paper.networks.studies.alignment import draw_alignment, measure_alignment
from fedgram.paper.networks.studies.beyond import draw_predictions, draw_solved
from fedgram.paper.networks.studies.main import draw_main, measure_main
from fedgram.paper.networks.studies.prediction import draw_prediction, measure_prediction
from fedgram.paper.networks.studies.robustness import (
    draw_architecture,
    draw_full_model,
    measure_architecture,
    measure_full_model,
)
from fedgram.paper.networks.studies.sweeps import (
    draw_epochs,
    draw_means,
    draw_weights,
    measure_epochs,
    measure_means,
    measure_rho,
)
from fedgram.paper.plots import SETTINGS

Measure = Callable[[ComparableRuns], Found]


def nothing_claimed(shown: ComparableRuns) -> Found:
    """For what the paper does not have."""
    return {}


@dataclass(frozen=True)
class Study:
    """One experiment: its cohorts are trained, `measure` turns their results into numbers for the claims."""

    name: str
    title: str
    where: str
    cohorts: tuple[Cohort, ...]
    measure: Measure = nothing_claimed

    @property
    def varieties(self) -> list[Variety]:
        """The settings it needs, each with whether it is the larger training set."""
        return list(dict.fromkeys(variety for cohort in self.cohorts for variety in cohort.varieties))

    def keys(self, scale: Scale, sources: Mapping[Variety, Source]) -> list[RunKey]:
        """Its runs at a scale, each once, of the settings that have a dataset."""
        return list(dict.fromkeys(key for cohort in self.cohorts for key in cohort.keys(scale, sources)))


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


rendered = styled(plotting.render)
"""Figure and suffix -> the content of a file."""


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "dnn-main",
            "Selection and moment correction in networks",
            "Sec. 5.2, App. F.1",
            (cohorts.MAIN,),
            measure_main,
        ),
        Study("dnn-means", "Removing the mean contribution", "App. F.2", (cohorts.MEANS,), measure_means),
        Study("dnn-epochs", "Local epochs and the endpoint", "App. F.3", (cohorts.EPOCHS,), measure_epochs),
        Study("dnn-rho", "Dependence on the proximal weight", "App. F.4", (cohorts.RHO,), measure_rho),
        Study(
            "dnn-alignment",
            "Selection by alignment",
            "App. F.5",
            (cohorts.ALIGNMENT, cohorts.ALIGNMENT_CORRECTED, cohorts.MISMATCHED),
            measure_alignment,
        ),
        Study(
            "dnn-architecture",
            "Architecture and data size",
            "App. F.6",
            (cohorts.ARCHITECTURE, cohorts.LARGER_DATA),
            measure_architecture,
        ),
        Study(
            "dnn-full-model", "Full-model averaging", "App. F.6", (cohorts.FULL_MODEL,), measure_full_model
        ),
        Study(
            "dnn-prediction",
            "Test error on images",
            "App. F.7",
            (cohorts.PREDICTION,),
            measure_prediction,
        ),
        Study("beyond-solved", "Solved returns: less training for the same end", "ours", (cohorts.SOLVED,)),
        Study(
            "beyond-prediction",
            "Solved, corrected and offset: test error beside centralized training",
            "ours",
            (cohorts.BETTER_PREDICTION,),
        ),
    )
}
