"""Scales of the paper's protocol: all of it, with either ResMLP; a tenth of it; or a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.paper.networks.settings import TABULAR, Source
from fedgram.runs.train_config import Precision, TrainConfig

# Data of the smoke scale. Swimmer: every eighth transition. Sprites: training and test images, every fourth
# pixel along each side, every other client.
TRANSITIONS, TRAIN_IMAGES, TEST_IMAGES, PIXELS, CLIENTS = 8, 128, 32, 4, 2

COMPARABLE = ("tf32", "fp16", "fp32", "fp64")
"""Precisions whose results are compared with the paper; in bf16 objectives end further from their minimum."""


@dataclass(frozen=True)
class Scale:
    """The paper's protocol, or a reduction of it.

    divisor: of local epochs, which stay at least 1; features: P; precision: of new runs; backbones: other
    networks by the name of the one they replace; embedded: read no files, because data inside fedgram
    replaces every dataset.
    """

    name: str
    description: str
    divisor: int = 1
    most_rounds: int = 8
    most_seeds: int = 5
    features: int = 512
    precision: Precision = "tf32"
    backbones: Mapping[str, str] = field(default_factory=dict)
    embedded: bool = False

    @property
    def is_full(self) -> bool:
        """Whether nothing is reduced, so that results compare with the paper's."""
        return self.divisor == 1 and not self.embedded

    def epochs(self, epochs: int) -> int:
        """E at this scale."""
        return max(1, epochs // self.divisor)

    def rounds(self, rounds: int) -> int:
        """Number of rounds at this scale."""
        return min(rounds, self.most_rounds)

    def seeds(self, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Seeds at this scale."""
        return seeds[: self.most_seeds]

    def backbone(self, name: str) -> str:
        """Network at this scale."""
        return self.backbones.get(name, name)

    def settings(self, epochs: int, rounds: int) -> TrainConfig:
        """Protocol of a run with these epochs and rounds."""
        return TrainConfig(epochs=epochs, rounds=rounds, features=self.features, precision=self.precision)

    def source(self, setting: str) -> Source:
        """Dataset that replaces a setting's own at an embedded scale."""
        return Source("swimmer-mini" if setting in TABULAR else "sprites")

    def problem(self, source: Source, folder: Path, larger: bool) -> Problem:
        """Load the data of a run; an embedded scale has a few rows, and twice as many for the larger set."""
        if not self.embedded:
            return registry.load(source.dataset, folder, source.options(larger))
        if source.dataset == "sprites":
            sprites, train = registry.dataset("sprites"), TRAIN_IMAGES * (1 + larger)
            problem = sprites.load((), Options(), train=train, test=TEST_IMAGES)
            return _thin(problem, (slice(None), *(slice(None, None, PIXELS),) * 2), CLIENTS)
        return _thin(registry.load(source.dataset, folder), (slice(None, None, TRANSITIONS),))


def _thin(problem: Problem, kept: tuple[slice, ...], clients: int = 1) -> Problem:
    """Slice the inputs along each axis, and keep every `clients`-th client, to train in seconds."""
    train, test = (
        {name: Split(held[name].inputs[kept], held[name].targets[kept[0]]) for name in list(held)[::clients]}
        for held in (problem.train, problem.test)
    )
    return replace(problem, train=train, test=test)


SCALES: dict[str, Scale] = {
    each.name: each
    for each in (
        Scale("paper", "paper: its own protocol"),
        Scale(
            "preactivated",
            "preactivated: the paper's protocol, tables with pre-activated blocks and Kaiming-normal weights",
            backbones={"resmlp": "resmlp-preactivated"},
        ),
        Scale("reduced", "reduced: E divided by 10, seed 0 only", divisor=10, most_seeds=1),
        Scale(
            "smoke",
            "smoke: E over 1000, at most 3 rounds, seeds 0 and 1, P = 32, small networks, embedded data",
            divisor=1000,
            most_rounds=3,
            most_seeds=2,
            features=32,
            backbones={
                "resmlp": "resmlp-small",
                "resnet18": "resnet-small",
                "resnet34": "resnet-small",
                "residual-cnn": "residual-cnn-small",
            },
            embedded=True,
        ),
    )
}


def get_scale(name: str, precision: str = "tf32") -> Scale:
    """Look up a scale by its name, with a precision of COMPARABLE for new runs."""
    if name not in SCALES:
        raise InputError(f"Unknown scale '{name}'. Scales are {', '.join(SCALES)}.", field="scale")
    if precision not in COMPARABLE:
        message = (
            f"Results in '{precision}' are not compared with the paper. Choose from {', '.join(COMPARABLE)}."
        )
        raise InputError(message, field="precision")
    return replace(SCALES[name], precision=precision)  # type: ignore[arg-type]  # checked
