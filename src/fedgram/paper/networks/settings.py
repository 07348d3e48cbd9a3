"""The paper's ten settings: a dataset with its network, and what stands in for data that is not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from fedgram.data import cache, registry
from fedgram.data.dataset import Options
from fedgram.errors import InputError


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
    """Clients and training rows in all."""

    clients: int
    rows: int


@dataclass(frozen=True)
class Setting:
    """A setting of the paper: its network, its size (Table 1), and its dataset followed by stand-ins.

    larger is the size of the larger training set, where the paper has one.
    """

    name: str
    title: str
    backbone: str
    size: Size
    sources: tuple[Source, ...]
    larger: Size | None = None


def _mujoco(name: str, title: str) -> Setting:
    sources = (Source(name), Source(f"{name}-rollouts", "ppo_stoch"))
    return Setting(name, title, "resmlp", Size(4, 4_000), sources)


def _image(name: str, title: str, *stand_ins: str, larger: Size | None = None, clients: int = 8) -> Setting:
    sources = (Source(name), *map(Source, stand_ins))
    return Setting(name, title, "resnet18", Size(clients, 12_000), sources, larger)


SETTINGS: dict[str, Setting] = {
    each.name: each
    for each in (
        Setting("beijing", "Beijing", "resmlp", Size(4, 9_000), (Source("beijing"),)),
        _mujoco("swimmer", "Swimmer"),
        _mujoco("hopper", "Hopper"),
        _mujoco("halfcheetah", "HalfCheetah"),
        _mujoco("walker", "Walker"),
        _image("mpiigaze", "MPIIGaze"),
        _image("300w-lp", "300W-LP"),
        _image("dsprites", "dSprites", "sprites"),
        _image("3dshapes", "3D Shapes", larger=Size(8, 48_000)),
        _image("cifar-geo", "CIFAR-geo", larger=Size(8, 40_000), clients=4),
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
            near = get_close_matches(name.lower(), SETTINGS, n=1)
            meant = f"did you mean '{near[0]}'? Settings" if near else "settings"
            raise InputError(
                f"There is no setting '{name}'; {meant} are {', '.join(SETTINGS)}.", field="setting"
            )
