"""The paper's ten settings: network, dataset and stand-ins for missing data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
        """Options for its loader."""
        return Options(variant=self.variant, larger=larger)

    def missing(self, folder: Path, larger: bool) -> str | None:
        """Reason why the dataset cannot be read from a data folder; None if it can."""
        entry, options = registry.dataset(self.dataset), self.options(larger)
        try:
            entry.find(folder, options)
        except InputError as error:
            return None if cache.cache_path(self.dataset, folder, options).exists() else error.message
        return None


@dataclass(frozen=True)
class Size:
    """Numbers of clients, and of training and test rows over all clients."""

    clients: int
    rows: int
    test_rows: int = 0


@dataclass(frozen=True)
class Setting:
    """A setting of the paper (Table 1); sources are its dataset, then stand-ins.

    inputs: shape of one input; targets: C; larger: size of the larger training set, if the paper has one.
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


def _image(name: str, title: str, inputs: tuple[int, ...], targets: int = 3, clients: int = 8) -> Setting:
    size = Size(clients, 12_000, 3_000)
    return Setting(name, title, "resnet18", inputs, targets, size, (Source(name),))


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
        replace(_image("dsprites", "dSprites", (64, 64, 1)), sources=(Source("dsprites"), Source("sprites"))),
        replace(_image("3dshapes", "3D Shapes", (64, 64, 3)), larger=Size(8, 48_000)),
        replace(_image("cifar-geo", "CIFAR-geo", (40, 40, 3), clients=4), larger=Size(8, 40_000)),
    )
}
"""By name, in the paper's order."""

ALL = tuple(SETTINGS)
TABULAR, IMAGES = ALL[:5], ALL[5:]
Variety = tuple[str, bool]
"""A setting, and whether its larger training set is used."""


@dataclass(frozen=True)
class AvailableSources:
    """Dataset that each setting is trained on, and why some have none."""

    sources: Mapping[Variety, Source]
    missing: Mapping[Variety, str]


def find_sources(
    varieties: Iterable[Variety], folder: Path, finished: Iterable[tuple[str, str, bool]] = ()
) -> AvailableSources:
    """Find the first dataset of each setting that has files in the folder or results.

    finished: setting, dataset and whether it is the larger one, for all existing results.
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
    return AvailableSources(sources, missing)


def check_settings(names: Iterable[str]) -> None:
    """Raise InputError for the name of an unknown setting."""
    for name in names:
        if name not in SETTINGS:
            message = f"Unknown setting '{name}'{suggest(name, SETTINGS)} Settings are {', '.join(SETTINGS)}."
            raise InputError(message, field="setting")
