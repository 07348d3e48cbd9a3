"""Look up datasets by name; import their loaders on first use."""

from __future__ import annotations

import tomllib
from functools import cache as memoize
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import suggest
from fedgram.data.datasets import cache
from fedgram.data.datasets.dataset import Dataset, Download, Options, data_directory
from fedgram.data.problem import Problem

DEFAULT = Options()


@memoize
def _read_entries() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("fedgram.data.datasets") / "datasets.toml").read_text(encoding="utf-8"))


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return tuple(_read_entries())


def dataset(name: str) -> Dataset:
    """Return the dataset of that name."""
    if name not in names():
        known = f"There is no dataset '{name}'{suggest(name, names())}"
        raise InputError(f"{known} Run 'fedgram data list' for all names.", field="name")
    entry = {
        key: tuple(each) if isinstance(each, list) else each for key, each in _read_entries()[name].items()
    }
    loader = import_module(f"fedgram.data.datasets.loaders.{entry['loader']}")
    downloads = tuple(Download(**each) for each in entry.get("downloads", ()))
    return Dataset(**entry | {"name": name, "loader": loader, "downloads": downloads})


def load(name: str, data_dir: str | Path | None = None, options: Options = DEFAULT) -> Problem:
    """Load a dataset from the data directory or its cache."""
    entry = dataset(name)
    check_variant(entry, options)
    return cache.load(entry, data_directory(data_dir), options)


def check_variant(entry: Dataset, options: Options) -> None:
    """Reject a variant that the dataset does not have."""
    if options.variant and options.variant not in entry.variants:
        known = f"Its variants are {', '.join(entry.variants)}" if entry.variants else "It has no variants"
        message = f"The dataset '{entry.name}' has no variant '{options.variant}'. {known}."
        raise InputError(message, field="variant")
