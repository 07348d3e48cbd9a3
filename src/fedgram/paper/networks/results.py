"""Results of network runs, and the Parquet tables that store them.

One file for each setting, network, number of epochs and protocol; one row for each run and round. Matrices
are lists in row-major order. Columns about a whole run repeat in its rows. Columns about a round's training
are null in round 0. Reading needs neither torch nor the runs.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_json
from fedgram._util.version import __version__
from fedgram.data.problem import Kind
from fedgram.paper.storage import read_arrow, write_table
from fedgram.runs.procedure import BIAS_RULES, Procedure

FORMAT = "fedgram-results/3"
MANIFEST = "manifest.json"
REFERENCES = ("barycenter", "centralized", "within")
PARTS = dict.fromkeys(("error", "direction_error"), REFERENCES) | dict.fromkeys(
    ("train_mse", "test_mse"), BIAS_RULES
)
"""Fields that take several columns: 'error_barycenter', 'test_mse_shared' and so on."""
CONSTANT = ("barycenter", "centralized", "within", "gap_terms", "client_grams")
"""Arrays of a whole run."""


@dataclass(frozen=True)
class RunKey:
    """Identity of a run within its scale."""

    setting: str
    dataset: str
    backbone: str
    procedure: Procedure
    seed: int
    epochs: int
    rounds: int
    larger: bool


@dataclass(frozen=True, eq=False)
class Result:
    """Measurements of one run of T rounds, M clients and C targets.

    setting: the paper's name; dataset: the data that was trained on, perhaps a stand-in of another `kind`;
    epochs: E as trained. target: the Gram that the procedure converges to, 'barycenter', 'centralized' or
    'within', each (C, C). gap_terms (3,): traces of the mean, covariance and averaging terms.
    grams (T + 1, C, C): of the shared head; returned_grams (T, M, C, C): of the averaged heads;
    client_grams (M, C, C): φ of the clients' own covariances; least_variance: their smallest eigenvalue.
    error e_F and direction_error d (T + 1,): by reference; trajectory_error (T + 1,): to the exact recursion
    from the same start. delta (T,): mean distance of the returned heads from the selected ones;
    objective_gap (T, M): (L_m - L⋆_m) / L⋆_m, the correction included; shared_objective (T,): the clients'
    mean objective with the averaged head. train_mse and test_mse (T, 3): in the order of BIAS_RULES, NaN
    without test rows. train_rows, test_rows: of all clients. seconds: the run's share of the time of its
    stack, which has models_in_stack models.
    A centralized run has one client in returned_grams and objective_gap.
    """

    setting: str
    dataset: str
    kind: Kind
    backbone: str
    procedure: Procedure
    seed: int
    epochs: int
    precision: str
    scale: str
    larger: bool
    target: str
    barycenter: Array
    centralized: Array
    within: Array
    gap_terms: Array
    grams: Array
    returned_grams: Array
    client_grams: Array
    least_variance: float
    error: dict[str, Array]
    direction_error: dict[str, Array]
    trajectory_error: Array
    delta: Array
    objective_gap: Array
    shared_objective: Array
    train_mse: Array
    test_mse: Array
    train_rows: int
    test_rows: int
    seconds: float
    device: str
    hardware: str
    models_in_stack: int

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.delta)

    @property
    def key(self) -> RunKey:
        """Identity of the run within its scale."""
        return RunKey(**{each.name: getattr(self, each.name) for each in fields(RunKey)})

    @property
    def id(self) -> str:
        """Short name in the SVG of a figure."""
        return f"{zlib.crc32(repr((self.scale, self.key)).encode()):08x}"

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU trained it."""
        return self.device.startswith("cuda")

    @property
    def target_error(self) -> Array:
        """e_F to the Gram that the procedure converges to, (T + 1,)."""
        return self.error[self.target]


class Results(tuple[Result, ...]):
    """Results in a fixed order."""

    def select(self, **wanted: Any) -> Results:
        """Select results whose fields (or `rounds`) have these values; a procedure may be text.

        results.select(setting="hopper", procedure="proximal+corrected", epochs=4000)
        """
        if isinstance(text := wanted.get("procedure"), str):
            wanted["procedure"] = Procedure.parse(text)
        return Results(
            each for each in self if all(getattr(each, name) == value for name, value in wanted.items())
        )

    def merge(self, others: Iterable[Result]) -> Results:
        """Add other results; they replace runs of the same scale and key."""
        return Results({(each.scale, each.key): each for each in (*self, *others)}.values())

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Load all results of a folder, in the order of file names; none if there is no folder."""
        return cls(result for path in sorted(folder.glob("*.parquet")) for result in _read(path))

    def save(self, folder: Path) -> list[Path]:
        """Write one file for each setting and protocol, and return the files.

        Files of other settings and protocols stay. Unchanged files are not written again.
        """
        manifest, paths = folder / MANIFEST, []
        known = dict(read_json(manifest)["files"]) if manifest.exists() else {}
        ordered = sorted(self, key=lambda run: (file_name(run), run.procedure.name, run.seed))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"Cannot write to '{folder}': {error.strerror}.", field="out") from None
        for name, group in groupby(ordered, file_name):
            runs, path = list(group), folder / name
            entry = _common(runs[0]) | {"runs": len(runs), "sha256": _digest(runs)}
            if known.get(name) != entry or not path.exists():
                _write(path, runs)
            known[name] = entry
            paths.append(path)
        write_json(manifest, {"format": FORMAT, "fedgram": __version__, "files": known})
        return paths


def file_name(run: Result) -> str:
    """Name of the file of a run."""
    more = f"-rounds{run.rounds}" + ("-larger" if run.larger else "")
    return f"{run.scale}-{run.setting}-{run.dataset}-{run.backbone}-E{run.epochs}{more}.parquet"


def _common(run: Result) -> dict[str, Any]:
    """Values that all runs of a file share."""
    names = ("scale", "setting", "dataset", "kind", "backbone", "epochs", "rounds", "larger")
    return {name: getattr(run, name) for name in names}


def _digest(runs: Iterable[Result]) -> str:
    """SHA-256 over all values, which does not depend on how Parquet encodes them."""
    content = hashlib.sha256()
    for run in runs:
        for name, value in _values(run).items():
            content.update(f"{name} ".encode())
            content.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return content.hexdigest()


def _values(run: Result) -> dict[str, Any]:
    """Values of a run by column: text and numbers, arrays of the whole run or along rounds."""
    named: dict[str, Any] = {}
    for each in fields(Result):
        value = getattr(run, each.name)
        if each.name in PARTS:
            arrays = value.values() if isinstance(value, dict) else value.T
            parts = zip(PARTS[each.name], arrays, strict=True)
            named |= {f"{each.name}_{part}": array for part, array in parts}
        else:
            named[each.name] = value.name if isinstance(value, Procedure) else value
    return named


def _write(path: Path, runs: Sequence[Result]) -> None:
    columns: dict[str, list[Any]] = {"round": []}
    for run in runs:
        columns["round"] += range(run.rounds + 1)
        for name, value in _values(run).items():
            columns.setdefault(name, []).extend(_cells(name, value, run.rounds + 1))
    write_table(path, columns, {"format": FORMAT} | _common(runs[0]))


def _cells(name: str, value: Any, rows: int) -> list[Any]:
    """Cells of a column in the rows of a run."""
    if not isinstance(value, np.ndarray):
        return [value] * rows
    if name in CONSTANT:
        return [value.ravel()] * rows
    cells = value.tolist() if value.ndim == 1 else list(value.reshape(len(value), -1))
    return [None] * (rows - len(cells)) + cells


def _read(path: Path) -> Iterator[Result]:
    table, settings = read_arrow(path)
    try:
        if settings.get("format") != FORMAT:
            raise KeyError("format")
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        starts = np.flatnonzero(columns.pop("round").to_numpy() == 0).tolist()
        for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
            yield _result({name: column.slice(start, end - start) for name, column in columns.items()})
    except (KeyError, TypeError):  # missing or unknown columns
        message = f"Another version of fedgram wrote '{path}'. Move it away;"
        remedy = "results are collected again from runs that still exist."
        raise InputError(f"{message} {remedy}", field="out") from None


def _result(columns: dict[str, Any]) -> Result:
    """Result from the pyarrow columns of its rows."""
    rounds, targets = len(columns["delta"]) - 1, isqrt(len(columns["barycenter"][0]))
    square = (targets, targets)
    shapes = dict.fromkeys(REFERENCES, square) | {
        "grams": (rounds + 1, *square),
        "returned_grams": (rounds, -1, *square),
        "client_grams": (-1, *square),
        "objective_gap": (rounds, -1),
    }
    values: dict[str, Any] = {}
    for each in fields(Result):
        name = each.name
        if name in PARTS:
            parts = {part: _numbers(columns.pop(f"{name}_{part}")) for part in PARTS[name]}
            values[name] = np.stack(list(parts.values()), axis=1) if name.endswith("mse") else parts
        elif name in shapes or name == "gap_terms":
            column = columns.pop(name)
            numbers = _numbers((column[:1] if name in CONSTANT else column).flatten())
            values[name] = numbers.reshape(shapes.get(name, 3))
        else:
            column = columns.pop(name)
            values[name] = _numbers(column) if each.type == "Array" else column[0].as_py()
    if columns:
        raise TypeError("unknown columns")
    return Result(**values | {"procedure": Procedure.parse(values["procedure"])})


def _numbers(column: Any) -> Array:
    """Numbers of a column without its nulls."""
    numbers: Array = column.drop_null().to_numpy()
    return numbers
