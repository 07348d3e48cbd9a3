"""Look up datasets by name; import their modules on first use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.data.datasets import cache
from fedgram.data.datasets.dataset import Dataset, Options, data_directory
from fedgram.data.problem import Problem

MODULES = {
    "beijing": "beijing",
    "swimmer": "mujoco",
    "hopper": "mujoco",
    "halfcheetah": "mujoco",
    "walker": "mujoco",
    "mpiigaze": "mpiigaze",
    "300w-lp": "w300lp",
    "dsprites": "dsprites",
    "3dshapes": "shapes3d",
    "cifar-geo": "cifar_geo",
    "swimmer-rollouts": "mujoco",
    "hopper-rollouts": "mujoco",
    "halfcheetah-rollouts": "mujoco",
    "walker-rollouts": "mujoco",
    "dsprites-rerendered": "dsprites",
    "beijing-stations": "beijing_stations",
    "swimmer-mini": "swimmer_mini",
    "sprites": "sprites",
    "gaussian": "gaussian",
}
"""Module by dataset name: the paper's ten in its order, then substitutes, then those in the package."""

DEFAULT = Options()


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return tuple(MODULES)


def dataset(name: str) -> Dataset:
    """Return the dataset of that name."""
    if name not in MODULES:
        raise InputError(
            f"There is no dataset '{name}'{suggest(name, MODULES)} Run 'fedgram data list' for all names.",
            field="name",
        )
    module = import_module(f"fedgram.data.datasets.loaders.{MODULES[name]}")
    found: Dataset = next(entry for entry in module.DATASETS if entry.name == name)
    return found


def load(name: str, data_dir: str | Path | None = None, options: Options = DEFAULT) -> Problem:
    """Load a dataset from the data directory or its cache."""
    entry = dataset(name)
    check_variant(entry, options)
    return cache.load(entry, data_directory(data_dir), options)


def check_variant(entry: Dataset, options: Options) -> None:
    """Reject a variant that the dataset does not have."""
    if options.variant and options.variant not in entry.variants:
        known = f"Its variants are {', '.join(entry.variants)}" if entry.variants else "It has no variants"
        raise InputError(
            f"The dataset '{entry.name}' has no variant '{options.variant}'. {known}.", field="variant"
        )
