"""What a client brings to a federation: its rows, its network, and a folder that nobody else sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.text import as_names, split_names
from fedgram.data.problem import Split
from fedgram.data.tables.read_rows import TEST_FRACTION, Reading, read_splits
from fedgram.data.validation import check_finite
from fedgram.flower.config import number
from fedgram.nets.model import Backbone
from fedgram.theory.moments import Moments


@dataclass(frozen=True, eq=False)
class Site:
    """One client: its name, training rows, test rows if it has any, and its backbone.

    folder keeps what must outlive a restart, and is private; device is that of `fedgram train`.
    """

    name: str
    train: Split
    test: Split | None = None
    targets: tuple[str, ...] = ()
    backbone: Backbone = "resmlp"
    folder: str | Path = "private"
    device: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", as_names(self.targets))
        for split in filter(None, (self.train, self.test)):
            check_finite(split.inputs, self.name, "inputs")
            check_finite(split.targets, self.name, "targets")

    @classmethod
    def from_table(
        cls,
        path: str,
        name: str,
        *,
        inputs: str | Sequence[str],
        targets: str | Sequence[str],
        test_fraction: float | None = None,
        seed: int = 0,
        **others: Any,
    ) -> Site:
        """A site whose rows are those of a CSV, TSV or Parquet file; `seed` draws those for testing."""
        reading = Reading(None, list(as_names(inputs)), list(as_names(targets)), test_fraction, site=name)
        train, test, _ = read_splits(path, reading, seed)
        return cls(name, train[name], test.get(name), as_names(targets), **others)

    @classmethod
    def configured(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> Site:
        """The site that a node's configuration names ('table', 'site', 'folder', 'device') for a run.

        The columns are the same at every site, so they stand in the run's ('inputs', 'targets').
        """
        for key, given, where in (
            ("table", node, "node"), ("site", node, "node"), ("inputs", run, "run"), ("targets", run, "run")
        ):  # fmt: skip
            if given.get(key) in (None, ""):
                raise InputError(f"The configuration of the {where} does not say '{key}'.", field=key)
        return cls.from_table(
            str(node["table"]),
            str(node["site"]),
            inputs=split_names(str(run["inputs"])),
            targets=split_names(str(run["targets"])),
            test_fraction=number(run, "test-fraction", TEST_FRACTION),
            backbone=str(run.get("backbone", "resmlp")),
            folder=str(node.get("folder", "private")),
            device=str(node.get("device", "auto")),
        )

    @property
    def moments(self) -> Moments:
        """Of its training targets: all that it tells about them."""
        return Moments.from_arrays({self.name: self.train.targets}, target_names=self.targets)
