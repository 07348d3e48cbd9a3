"""The network experiments as data: what is trained, where the paper reports it, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgram.paper.networks import cohorts
from fedgram.paper.networks.cohorts import Cohort
from fedgram.paper.networks.findings import Found
from fedgram.paper.networks.measures_main import (
    measure_epochs,
    measure_main,
    measure_means,
    measure_rho,
)
from fedgram.paper.networks.measures_more import (
    measure_alignment,
    measure_architecture,
    measure_full_model,
    measure_prediction,
)
from fedgram.paper.networks.results import RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import Source, Variety
from fedgram.paper.networks.shown import Shown

Measure = Callable[[Shown], Found]


def nothing_claimed(shown: Shown) -> Found:
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
