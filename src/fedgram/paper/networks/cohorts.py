"""Cohorts of runs: settings x seeds x conditions, as in the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from fedgram.paper.networks.results import RunKey
from fedgram.paper.networks.scales import Scale
from fedgram.paper.networks.settings import ALL, IMAGES, SETTINGS, TABULAR, Source, Variety
from fedgram.runs.procedure import Procedure

FIVE, THREE = (0, 1, 2, 3, 4), (0, 1, 2)
BUDGETS = (50, 100, 200, 400, 1000, 2000, 4000)
WEIGHTS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


_parse = cache(Procedure.parse)  # a report asks for tens of thousands of keys


@dataclass(frozen=True)
class Condition:
    """How a run is trained: procedure, local epochs, rounds, network and size of the data.

    The default backbone is that of the setting.
    """

    procedure: str
    epochs: int = 4000
    rounds: int = 8
    backbone: str | None = None
    larger: bool = False

    def key(self, setting: str, dataset: str, seed: int, scale: Scale) -> RunKey:
        """Key of the run of this condition at a scale."""
        return RunKey(
            setting=setting,
            dataset=dataset,
            backbone=scale.backbone(self.backbone or SETTINGS[setting].backbone),
            procedure=_parse(self.procedure),
            seed=seed,
            epochs=scale.epochs(self.epochs),
            rounds=scale.rounds(self.rounds),
            larger=self.larger,
        )


@dataclass(frozen=True)
class Cohort:
    """All combinations of settings, seeds and conditions."""

    settings: tuple[str, ...]
    seeds: tuple[int, ...]
    conditions: tuple[Condition, ...]

    @property
    def varieties(self) -> list[Variety]:
        """Settings, each with whether its larger training set is used."""
        return list(product(self.settings, sorted({condition.larger for condition in self.conditions})))

    def at(self, setting: str) -> Cohort:
        """Its part in one setting."""
        return replace(self, settings=(setting,))

    def keys(self, scale: Scale, sources: Mapping[Variety, Source]) -> Iterator[RunKey]:
        """Keys of its runs at a scale, in the settings that have a dataset."""
        for setting, condition in product(self.settings, self.conditions):
            if source := sources.get((setting, condition.larger)):
                for seed in scale.seeds(self.seeds):
                    yield condition.key(setting, source.dataset, seed, scale)


def proximal(weight: float) -> str:
    """Procedure of a proximal weight; weight 0 is ordinary training."""
    return f"proximal={weight:g}" if weight else "ordinary"


def with_correction(procedure: str) -> str:
    """Add moment correction to a procedure."""
    return replace(Procedure.parse(procedure), corrected=1.0).name


def _each(*procedures: str, epochs: tuple[int, ...] = (4000,)) -> tuple[Condition, ...]:
    return tuple(Condition(procedure, budget) for budget in epochs for procedure in procedures)


MAIN = Cohort(ALL, FIVE, _each("ordinary", "proximal", "corrected", "proximal+corrected"))
MEANS = Cohort(ALL, THREE, _each("ordinary", "centered"))
EPOCHS = Cohort(ALL, THREE, _each("ordinary", epochs=BUDGETS))
RHO = Cohort(ALL, THREE, _each(*map(proximal, WEIGHTS)))
ALIGNED = ("beijing", "swimmer", "hopper", "halfcheetah", "3dshapes", "cifar-geo")
ALIGNMENT = Cohort(ALIGNED, FIVE, _each("ordinary", "proximal", "aligned"))
ALIGNMENT_CORRECTED = Cohort(ALIGNED, THREE, _each("corrected", "proximal+corrected", "aligned+corrected"))
# With a common initialization the first round of the runs above is the comparison.
MISMATCHED = Cohort(
    ALIGNED, FIVE, tuple(Condition(words, rounds=1) for words in ("independent", "aligned+independent"))
)
START_PAIRS = {"common": (Condition("ordinary"), Condition("aligned")), "independent": MISMATCHED.conditions}
"""Conditions without and with alignment, by the start of the clients' backbones.

Both train the same first round. They differ in the alignment, and in rounding that grows over the epochs.
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
PREDICTION = Cohort(IMAGES, THREE, _each("ordinary", "proximal", "proximal+corrected"))
PAPER = (
    MAIN, MEANS, EPOCHS, RHO, ALIGNMENT, ALIGNMENT_CORRECTED, MISMATCHED, ARCHITECTURE, LARGER_DATA,
    FULL_MODEL, PREDICTION,
)  # fmt: skip
"""All runs of the paper."""

SOLVED = Cohort(ALL, THREE, _each("ordinary", "proximal", "aligned", "solved", epochs=BUDGETS))
SOLVED_SEEDS = Cohort(TABULAR, FIVE, _each("ordinary", "proximal", "aligned", "solved"))
BETTER_PREDICTION = Cohort(
    ALL,
    THREE,
    _each("ordinary", "proximal", "proximal+corrected", "solved", "solved+corrected", "centralized"),
)
PREDICTING = tuple(condition.procedure for condition in BETTER_PREDICTION.conditions)
"""Procedures whose test errors are compared, centralized training last."""
