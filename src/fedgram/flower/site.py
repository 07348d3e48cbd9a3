"""A client's rows, network and private folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.errors import InputError
from fedgram._util.text import LONGEST_NAME, as_names, escape_text, is_valid_name, split_names
from fedgram.data.holdout import draw_validation_rows
from fedgram.data.site_summary import ColumnSummary, Impute
from fedgram.data.split import Split
from fedgram.data.tables.diagnostics import TextColumnError
from fedgram.data.tables.read_rows import (
    TEST_FRACTION,
    TableSpec,
    read_parts,
    read_splits,
    summarize_inputs,
)
from fedgram.data.validation import check_finite, client_name
from fedgram.flower.client_state import folder_name
from fedgram.flower.config import (
    read_categories,
    read_fill,
    read_flag,
    read_number,
    read_standardize,
    read_validation_fraction,
)
from fedgram.flower.identity import SiteKey
from fedgram.nets.model import Backbone
from fedgram.theory.moments import Moments


@dataclass(frozen=True, eq=False)
class Site:
    """One client of a federation.

    `targets` are the target names, and `inputs` the names of the input columns, if they have names. `folder`
    is private and must survive restarts. `backbone` and `device` are as in `fedgram.training.train`.
    `validation` rows choose the round and all strengths; they are not trained on. `levels` are those of the
    inputs that are categories; each has a 0/1 column in `train`. `fill` has the values of missing inputs in
    rows to predict; a missing category has no level. `dropped_rows` counts rows that were left out because of
    missing values.
    """

    name: str
    train: Split
    test: Split | None = None
    targets: tuple[str, ...] = ()
    backbone: Backbone = "resmlp"
    folder: str | Path = "private"
    device: str = "auto"
    validation: Split | None = None
    inputs: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fill: Mapping[str, float | str] = field(default_factory=dict)
    dropped_rows: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", as_names(self.targets))
        object.__setattr__(self, "inputs", as_names(self.inputs))
        if not is_valid_name(self.name):
            raise InputError(
                f"Invalid site name: {escape_text(repr(self.name))}. Use 1 to {LONGEST_NAME} printable "
                "characters.",
                field="site",
            )
        for split in filter(None, (self.train, self.test, self.validation)):
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
        where: str | None = None,
        column: str | None = None,
        value: str | None = None,
        time: str | None = None,
        validation_fraction: float = 0.0,
        categories: Mapping[str, Sequence[str]] | None = None,
        fill: Mapping[str, float | str] | None = None,
        drop_missing: bool = False,
        input_type: type = np.float32,
        **others: Any,
    ) -> Site:
        """Read the rows of a table file; `seed` draws the test rows, `where` is a SQL condition.

        With `column`, only the rows that have `value` there are read; it is the site's name by default.
        With `time`, a column, the latest rows are for testing instead of random ones, and with
        `validation_fraction` the latest before them for validation.
        `categories` has the levels of every input that is a category, at all sites. `fill` has the values of
        missing inputs by name; a missing category has no level. `drop_missing` leaves out rows with another
        missing value, which are refused otherwise.
        `input_type` is the type of inputs: single precision, or double before they are standardized.
        """
        name, inputs, targets = name.strip(), as_names(inputs), as_names(targets)
        value = (value or name) if column else None
        levels = {key: tuple(given) for key, given in (categories or {}).items()}
        spec = TableSpec(
            column, list(inputs), list(targets), test_fraction, where, drop_missing, site=name, value=value,
            time=time, levels=levels, fill=fill or {},
        )  # fmt: skip
        validation: dict[str, Split] = {}
        try:
            if time:
                parts = read_parts(path, spec, seed, validation_fraction, input_type)
                train, validation, test, dropped = parts
            else:
                train, test, dropped = read_splits(path, spec, seed, input_type)
        except TextColumnError as error:
            if error.field in targets:
                raise
            advice = "Name it in 'categories', or convert it to numbers in the same way at every site."
            raise InputError(f"{error.problem} {advice}", client=name, field=error.field) from None
        return cls(
            name, train[name], test.get(name), targets, validation=validation.get(name), inputs=inputs,
            levels=levels, fill=spec.fill, dropped_rows=dropped, **others,
        )  # fmt: skip

    @classmethod
    def from_config(cls, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Site:
        """Read the table that the node config names.

        The node config has 'table', 'site', 'folder' and 'device', and with 'column' and 'value' it selects
        the rows that have this value there. The run config has 'inputs' and 'targets', because all clients
        use the same columns.
        """
        required = {"node": (node_config, ("table", "site")), "run": (run_config, ("inputs", "targets"))}
        for source, (config, keys) in required.items():
            for key in keys:
                if config.get(key) in (None, ""):
                    raise InputError(f"Missing key in the {source} config: '{key}'. Add it.", field=key)
        return cls.from_table(
            str(node_config["table"]),
            str(node_config["site"]),
            inputs=split_names(str(run_config["inputs"])),
            targets=split_names(str(run_config["targets"])),
            test_fraction=read_number(run_config, "test-fraction", TEST_FRACTION),
            column=str(node_config.get("column", "")) or None,
            value=client_name(node_config.get("value")),
            time=str(run_config.get("time", "")) or None,
            validation_fraction=read_validation_fraction(run_config),
            categories=read_categories(run_config),
            fill=read_fill(run_config),
            drop_missing=read_flag(run_config, "drop-missing"),
            input_type=np.float64 if read_standardize(run_config) else np.float32,
            backbone=str(run_config.get("backbone", "resmlp")),
            folder=str(node_config.get("folder", "private")),
            device=str(node_config.get("device", "auto")),
        )

    @staticmethod
    def summarize_inputs(
        node_config: Mapping[str, Any], inputs: Sequence[str], categories: Sequence[str], impute: Impute
    ) -> dict[str, ColumnSummary]:
        """Count the levels of categories in the site's table; with `impute`, find medians of other inputs."""
        column = str(node_config.get("column", "")) or None
        spec = TableSpec(
            column, list(inputs), [], site=str(node_config["site"]),
            value=client_name(node_config.get("value")), categories=categories, impute=impute,
        )  # fmt: skip
        return summarize_inputs(str(node_config["table"]), spec)

    def hold_out_validation(self, fraction: float) -> Site:
        """Move a fraction of the training rows to the validation rows, unless the site has some already.

        `Problem.hold_out_validation` draws the same rows.
        """
        if not fraction or self.validation is not None:
            return self
        rows, targets = self.train.targets.shape
        train, validation = map(self.train.take, draw_validation_rows(self.name, rows, targets, fraction))
        return replace(self, train=train, validation=validation)

    @property
    def test_rows(self) -> int:
        """Number of test rows."""
        return 0 if self.test is None else len(self.test)

    @property
    def validation_rows(self) -> int:
        """Number of validation rows."""
        return 0 if self.validation is None else len(self.validation)

    @property
    def own_folder(self) -> Path:
        """The site's own part of its private folder, which sites on one machine may share."""
        return Path(self.folder, folder_name(self.name))

    def load_key(self) -> SiteKey:
        """Read the site's key, or create it if there is none."""
        return SiteKey.load(self.own_folder.with_name(f"{self.own_folder.name}.key"))

    @property
    def moments(self) -> Moments:
        """Moments of the training targets."""
        return Moments.from_arrays({self.name: self.train.targets}, target_names=self.targets)
