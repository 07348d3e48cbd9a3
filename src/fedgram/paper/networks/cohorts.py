"""What is compared with what: settings x seeds x conditions, in the paper's own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from fedgram.paper.networks.results import RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import ALL, IMAGES, SETTINGS, TABULAR, Source, Variety
from fedgram.runs.procedure import Procedure

FIVE, THREE = (0, 1, 2, 3, 4), (0, 1, 2)
BUDGETS = (50, 100, 200, 400, 1000, 2000, 4000)
WEIGHTS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Condition:
    """How a run is trained: its procedure in words, local epochs, rounds, network and size of the data.

    Without a backbone it is the setting's own.
    """

    procedure: str
    epochs: int = 4000
    rounds: int = 8
    backbone: str | None = None
    larger: bool = False

    def key(self, setting: str, dataset: str, seed: int, scale: Scale) -> RunKey:
        """The run of this condition at a scale."""
        return RunKey(
            setting=setting,
            dataset=dataset,
            backbone=scale.backbone(self.backbone or SETTINGS[setting].backbone),
            procedure=Procedure.parse(self.procedure),
            seed=seed,
            epochs=scale.epochs(self.epochs),
            rounds=scale.rounds(self.rounds),
            larger=self.larger,
        )


@dataclass(frozen=True)
class Cohort:
    """Every setting with every seed under every condition."""

    settings: tuple[str, ...]
    seeds: tuple[int, ...]
    conditions: tuple[Condition, ...]

    @property
    def varieties(self) -> list[Variety]:
        """The settings, each with whether its larger training set is meant."""
        return list(product(self.settings, sorted({condition.larger for condition in self.conditions})))

    def at(self, setting: str) -> Cohort:
        """The part of it in one setting."""
        return replace(self, settings=(setting,))

    def keys(self, scale: Scale, sources: Mapping[Variety, Source]) -> Iterator[RunKey]:
        """The runs at a scale, of the settings that have a dataset."""
        for setting, condition in product(self.settings, self.conditions):
            if source := sources.get((setting, condition.larger)):
                for seed in scale.seeds(self.seeds):
                    yield condition.key(setting, source.dataset, seed, scale)


def proximal(weight: float) -> str:
    """The words for a proximal weight; none is ordinary training."""
    return f"proximal={weight:g}" if weight else "ordinary"


def _of(*procedures: str, epochs: tuple[int, ...] = (4000,)) -> tuple[Condition, ...]:
    return tuple(Condition(procedure, budget) for budget in epochs for procedure in procedures)


MAIN = Cohort(ALL, FIVE, _of("ordinary", "proximal", "corrected", "proximal+corrected"))
MEANS = Cohort(ALL, THREE, _of("ordinary", "centered"))
EPOCHS = Cohort(ALL, THREE, _of("ordinary", epochs=BUDGETS))
RHO = Cohort(ALL, THREE, _of(*map(proximal, WEIGHTS)))

ALIGNED = ("beijing", "swimmer", "hopper", "halfcheetah", "3dshapes", "cifar-geo")
ALIGNMENT = Cohort(ALIGNED, FIVE, _of("ordinary", "proximal", "aligned"))
ALIGNMENT_CORRECTED = Cohort(ALIGNED, THREE, _of("corrected", "proximal+corrected", "aligned+corrected"))
# With a common initialisation the first round of the runs above is the comparison.
MISMATCHED = Cohort(
    ALIGNED, FIVE, tuple(Condition(words, rounds=1) for words in ("independent", "aligned+independent"))
)

START_PAIRS = {
    "common": (Condition("ordinary"), Condition("aligned")),
    "independent": MISMATCHED.conditions,
}
"""What is averaged as trained and after alignment, by how the clients' backbones begin.

Both train the same first round, so that they differ in the alignment and in what rounding grows to over its
epochs.
"""

CNN, CNN_CORRECTED, RESNET34 = (
    Condition("ordinary", backbone="residual-cnn"),
    Condition("corrected", backbone="residual-cnn"),
    Condition("ordinary", backbone="resnet34"),
)
LARGER = Condition("ordinary", 1000, larger=True)
ARCHITECTURE = Cohort(IMAGES, THREE, (CNN, CNN_CORRECTED, RESNET34))
LARGER_DATA = Cohort(("3dshapes", "cifar-geo"), THREE, (LARGER,))

FULL_SHORT, FULL, FULL_CORRECTED = (
    Condition("full-model", 400),
    Condition("full-model"),
    Condition("corrected+full-model"),
)
FULL_MODEL = Cohort(TABULAR, THREE, (FULL_SHORT, FULL, FULL_CORRECTED))
PREDICTION = Cohort(IMAGES, THREE, _of("ordinary", "proximal", "proximal+corrected"))

PAPER = (
    MAIN, MEANS, EPOCHS, RHO, ALIGNMENT, ALIGNMENT_CORRECTED, MISMATCHED, ARCHITECTURE, LARGER_DATA,
    FULL_MODEL, PREDICTION,
)  # fmt: skip
"""All that the paper runs."""

SOLVED = Cohort(ALL, THREE, _of("ordinary", "proximal", "aligned", "solved", epochs=BUDGETS))
BETTER_PREDICTION = Cohort(
    ALL,
    THREE,
    _of("ordinary", "proximal", "proximal+corrected", "solved", "solved+corrected", "centralized"),
)
