"""The network experiments as data: cohorts, measures and figures."""

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
from fedgram.paper.networks.studies import alignment, beyond, main, prediction, robustness, sweeps
from fedgram.paper.plots import SETTINGS


@dataclass(frozen=True)
class Study:
    """One experiment on the runs of its cohorts.

    draw: from comparable runs to a figure, or to figures by name; None for a figure without data. measure:
    from them to numbers for the claims, if the paper makes any.
    """

    name: str
    title: str
    where: str
    cohorts: tuple[Cohort, ...]
    draw: Callable[[ComparableRuns], Any]
    measure: Callable[[ComparableRuns], Found] = lambda shown: {}

    @property
    def varieties(self) -> list[Variety]:
        """Settings that it needs, each with whether it is the larger training set."""
        return list(dict.fromkeys(variety for cohort in self.cohorts for variety in cohort.varieties))

    def keys(self, scale: Scale, sources: Mapping[Variety, Source]) -> list[RunKey]:
        """Keys of its runs at a scale, each once, in the settings that have a dataset."""
        return list(dict.fromkeys(key for cohort in self.cohorts for key in cohort.keys(scale, sources)))


def figures_of(name: str, results: Results) -> dict[str, Any]:
    """Draw the figures of an experiment by name; a single figure has the name ''."""
    with pyplot().rc_context(SETTINGS):
        drawn = STUDIES[name].draw(ComparableRuns.from_results(results))
    return drawn if isinstance(drawn, dict) else {"": drawn}


def render_styled(figure: Any, suffix: str = "png") -> bytes:
    """Render a figure to the content of a file, in the style of the report."""
    with pyplot().rc_context(SETTINGS):
        return plotting.render(figure, suffix)


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study("dnn-main", "Selection and moment correction in networks", "Sec. 5.2, App. F.1",
              (cohorts.MAIN,), main.draw_main, main.measure_main),
        Study("dnn-means", "Removing the mean contribution", "App. F.2",
              (cohorts.MEANS,), sweeps.draw_means, sweeps.measure_means),
        Study("dnn-epochs", "Local epochs and the endpoint", "App. F.3",
              (cohorts.EPOCHS,), sweeps.draw_epochs, sweeps.measure_epochs),
        Study("dnn-rho", "Dependence on the proximal weight", "App. F.4",
              (cohorts.RHO,), sweeps.draw_weights, sweeps.measure_rho),
        Study("dnn-alignment", "Selection by alignment", "App. F.5",
              (cohorts.ALIGNMENT, cohorts.ALIGNMENT_CORRECTED, cohorts.MISMATCHED),
              alignment.draw_alignment, alignment.measure_alignment),
        Study("dnn-architecture", "Architecture and data size", "App. F.6",
              (cohorts.ARCHITECTURE, cohorts.LARGER_DATA),
              robustness.draw_architecture, robustness.measure_architecture),
        Study("dnn-full-model", "Full-model averaging", "App. F.6",
              (cohorts.FULL_MODEL,), robustness.draw_full_model, robustness.measure_full_model),
        Study("dnn-prediction", "Test error on images", "App. F.7",
              (cohorts.PREDICTION,), prediction.draw_prediction, prediction.measure_prediction),
        Study("beyond-solved", "Solved returns: less training for the same end", "ours",
              (cohorts.SOLVED, cohorts.SOLVED_SEEDS), beyond.draw_solved),
        Study("beyond-prediction", "Solved, corrected and offset: test error beside centralized training",
              "ours", (cohorts.BETTER_PREDICTION,), beyond.draw_predictions),
    )
}  # fmt: skip
"""By name, in the order of the paper, then ours."""
