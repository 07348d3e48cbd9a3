"""The paper's ten settings: a dataset with its network, and what stands in for data that is not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.data.datasets import cache, registry
from fedgram.data.datasets.dataset import Options


@dataclass(frozen=True)
class Source:
    """A dataset and the variant of its files."""

    dataset: str
    variant: str = ""

    def options(self, larger: bool) -> Options:
        """What its loader is asked for."""
        return Options(variant=self.variant, larger=larger)

    def missing(self, folder: Path, larger: bool) -> str | None:
        """Why the dataset cannot be read from a data directory; None if it can."""
        entry, options = registry.dataset(self.dataset), self.options(larger)
        try:
            entry.find(folder, options)
        except InputError as error:
            return None if cache.path_of(self.dataset, folder, options).exists() else error.message
        return None


@dataclass(frozen=True)
class Size:
    """Clients, and training and test rows in all."""

    clients: int
    rows: int
    test_rows: int = 0


@dataclass(frozen=True)
class Setting:
    """A setting of the paper: its network, its data (Table 1), and its dataset followed by stand-ins.

    inputs is the shape of one input, targets the number C; larger is the size of the larger training set,
    where the paper has one.
    """

    name: str
    title: str
    backbone: str
    inputs: tuple[int, ...]
    targets: int
    size: Size
    sources: tuple[Source, ...]
    larger: Size | None = None


def _mujoco(name: str, title: str, inputs: int, targets: int) -> Setting:
    sources = (Source(name), Source(f"{name}-rollouts", "ppo_stoch"))
    return Setting(name, title, "resmlp", (inputs,), targets, Size(4, 4_000), sources)


def _image(
    name: str,
    title: str,
    inputs: tuple[int, ...],
    *stand_ins: str,
    targets: int = 3,
    clients: int = 8,
    larger: Size | None = None,
) -> Setting:
    sources = (Source(name), *map(Source, stand_ins))
    return Setting(name, title, "resnet18", inputs, targets, Size(clients, 12_000, 3_000), sources, larger)


SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (
        Setting("beijing", "Beijing", "resmlp", (8,), 2, Size(4, 9_000), (Source("beijing"),)),
        _mujoco("swimmer", "Swimmer", 8, 2),
        _mujoco("hopper", "Hopper", 11, 3),
        _mujoco("halfcheetah", "HalfCheetah", 17, 6),
        _mujoco("walker", "Walker", 17, 6),
        _image("mpiigaze", "MPIIGaze", (36, 60, 1), targets=2),
        _image("300w-lp", "300W-LP", (64, 64, 3)),
        _image("dsprites", "dSprites", (64, 64, 1), "sprites"),
        _image("3dshapes", "3D Shapes", (64, 64, 3), larger=Size(8, 48_000)),
        _image("cifar-geo", "CIFAR-geo", (40, 40, 3), clients=4, larger=Size(8, 40_000)),
    )
}
"""By name, in the paper's order."""

ALL = tuple(SETTINGS)
TABULAR, IMAGES = ALL[:5], ALL[5:]

Variety = tuple[str, bool]
"""A setting, and whether its larger training set is meant."""


@dataclass(frozen=True)
class AtHand:
    """Which dataset each setting is trained on, and why some have none."""

    sources: Mapping[Variety, Source]
    missing: Mapping[Variety, str]


def at_hand(
    varieties: Iterable[Variety], folder: Path, finished: Iterable[tuple[str, str, bool]] = ()
) -> AtHand:
    """For each setting the first of its datasets whose files are in the folder or that has results.

    finished names setting, dataset and whether it is the larger one, of the results that there are.
    """
    sources: dict[Variety, Source] = {}
    missing: dict[Variety, str] = {}
    results = set(finished)
    for name, larger in dict.fromkeys(varieties):
        reasons = []
        for source in SETTINGS[name].sources:
            reason = source.missing(folder, larger)
            if reason is None or (name, source.dataset, larger) in results:
                sources[name, larger] = source
                break
            reasons.append(reason)
        else:
            missing[name, larger] = reasons[0]
    return AtHand(sources, missing)


def check_names(names: Iterable[str]) -> None:
    """Refuse the name of a setting that the paper does not have."""
    for name in names:
        if name not in SETTINGS:
            meant = suggest(name, SETTINGS)
            raise InputError(
                f"There is no setting '{name}'{meant} Settings are {', '.join(SETTINGS)}.", field="setting"
            )
