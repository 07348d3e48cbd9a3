"""Predictions of new rows in a table: what `fedgram runs predict` writes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import write_bytes
from fedgram.data.tables.read_rows import Reading, read_inputs
from fedgram.runs import Runs, StoredRun


@dataclass(frozen=True, eq=False)
class Predicted:
    """The client of every row (N,), and what was predicted for it (N, C), in the order of the table."""

    clients: list[str]
    targets: tuple[str, ...]
    values: Array

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"targets": list(self.targets), "clients": self.clients, "predictions": self.values.tolist()}

    def csv(self) -> str:
        """A line for every row, after one of names."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["client", *self.targets])
        lines.writerows(
            [client, *row] for client, row in zip(self.clients, self.values.tolist(), strict=True)
        )
        return text.getvalue()

    def save(self, output: Path) -> None:
        """Write the CSV file."""
        write_bytes(output, self.csv().encode())


def predicted(folder: Path, data: str, client: str | None, site: str | None) -> Predicted:
    """What the networks of a run predict for the rows of a table, each with that of its client."""
    from fedgram.train import predictions

    run = _one(folder)
    run.require_model()
    if run.setup.procedure.centralized and client is None:
        site = site or "all"  # one network serves clients of any name
    if (client is None) == (site is None):
        raise InputError(
            "Say either --client, the column that names each row's client, or --site, and not both.",
            field="client",
        )
    clients, inputs = read_inputs(data, Reading(client, _inputs(run), [], site=site or ""))
    owners = np.array(clients, dtype=object)
    values = np.empty((len(clients), len(run.setup.data.targets)))
    rows = {name: inputs[owners == name].astype(np.float32) for name in dict.fromkeys(clients)}
    for name, found in predictions(run, rows).items():
        values[owners == name] = found
    return Predicted(clients, run.setup.data.targets, values)


def _one(folder: Path) -> StoredRun:
    """The run in a folder, which must be one."""
    found = Runs(folder).require()
    if len(found) > 1:
        raise InputError(
            f"There are {len(found)} runs in '{folder}'; name the folder of one, like '{found[0].folder}'.",
            field="folder",
        )
    return found[0]


def _inputs(run: StoredRun) -> list[str]:
    """The columns that a run was trained on."""
    inputs = run.setup.data.provenance.get("inputs")
    if not inputs:
        raise InputError(
            f"The run was trained on '{run.setup.data.name}', whose inputs are no columns of a table; in "
            "Python fedgram.train.predictions takes arrays.",
            field="folder",
        )
    return list(inputs)
