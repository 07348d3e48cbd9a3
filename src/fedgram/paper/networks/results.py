"""What every run of the network experiments found, small enough to be shipped.

One Parquet file for each setting, network, number of epochs and protocol. Reading needs neither torch nor
the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, overload

import numpy as np

import fedgram
from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_json
from fedgram.data.problem import Kind
from fedgram.paper.storage import Table, digest, read_table, write_table
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class RunKey:
    """What tells one run of a scale from another."""

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
    """One run of T rounds, M clients and C targets, measured.

    setting is the paper's name, dataset what was trained on, which may be a stand-in of another `kind`;
    epochs E as trained. target names the Gram that the procedure ends at: 'barycenter', 'centralized' or
    'within'; these three are (C, C). gap_terms (3,): traces of the mean, covariance and averaging terms.
    grams (T + 1, C, C) of the shared head; returned_grams (T, M, C, C) of what was averaged; client_grams
    (M, C, C), φ of the clients' own covariances, and least_variance, the smallest eigenvalue of these.
    error e_F and direction_error d (T + 1,) by reference, and trajectory_error (T + 1,) to the exact
    recursion from the same start. delta (T,): mean distance of the returned heads from the selected ones;
    objective_gap (T, M): (L_m - L⋆_m) / L⋆_m, the correction included; shared_objective (T,): the clients'
    mean objective with the averaged head. train_mse and test_mse (T, 3) in the order of BIAS_RULES, NaN
    without test rows. train_rows and test_rows of all clients together. seconds: the run's share of the time
    that its stack of models_in_stack took.
    A centralized run has one client in returned_grams and objective_gap.
    """

    setting: str
    dataset: str
    kind: Kind
    backbone: str
    procedure: Procedure
    seed: int
    epochs: int
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
        """What tells this run from the others of its scale."""
        return RunKey(
            self.setting, self.dataset, self.backbone, self.procedure,
            self.seed, self.epochs, self.rounds, self.larger,
        )  # fmt: skip

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU trained it."""
        return self.device.startswith("cuda")

    @property
    def target_error(self) -> Array:
        """e_F to the procedure's own target, (T + 1,)."""
        return self.error[self.target]


class Results(Sequence[Result]):
    """Results in a fixed order; `select` narrows them down."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._results = tuple(results)

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Result | Results:
        found = self._results[index]
        return found if isinstance(found, Result) else Results(found)

    def select(self, **wanted: Any) -> Results:
        """Those whose fields (or `rounds`) have these values; a procedure may be given in words.

        results.select(setting="hopper", procedure="proximal+corrected", epochs=4000)
        """
        if isinstance(words := wanted.get("procedure"), str):
            wanted["procedure"] = Procedure.parse(words)
        return Results(
            each for each in self if all(getattr(each, name) == value for name, value in wanted.items())
        )

    def merged(self, others: Iterable[Result]) -> Results:
        """These and others; where both have a run of the same scale and key, the other's."""
        return Results({(each.scale, each.key): each for each in (*self, *others)}.values())

    @classmethod
    def load(cls, folder: Path) -> Results:
        """All results that were saved to a folder; none where there is no folder."""

        return cls(load(folder))

    def save(self, folder: Path) -> list[Path]:
        """Write these to a folder, a file for each setting and protocol, and return the files.

        Files of other settings and protocols stay; unchanged ones are not written again.
        """

        return save(self, folder)


MANIFEST = "manifest.json"
BY_REFERENCE = ("error", "direction_error")


def can_be_kept() -> bool:
    """Whether results can be written and read here, which takes DuckDB."""
    try:
        import duckdb  # noqa: F401
    except ImportError:
        return False
    return True


def save(results: Iterable[Result], folder: Path) -> list[Path]:
    """Write a file for each group of runs that share setting and protocol; those that changed only."""
    known, paths = _manifest(folder), []
    ordered = sorted(results, key=lambda each: (file_name(each), each.procedure.name, each.seed))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to '{folder}': {error.strerror}.", field="out") from None
    for name, group in groupby(ordered, file_name):
        runs = list(group)
        table, path = _table(runs), folder / name
        entry = {**_shared(runs[0]), "runs": len(runs), "sha256": digest(table)}
        if known.get(name) != entry or not path.exists():
            write_table(path, table, _shared(runs[0]))
        known[name] = entry
        paths.append(path)
    document = {"format": "fedgram-results/1", "fedgram": fedgram.__version__, "files": known}
    write_json(folder / MANIFEST, document)
    return paths


def load(folder: Path) -> Iterator[Result]:
    """The runs of all files in a folder, in the order of the files' names."""
    for path in sorted(folder.glob("*.parquet")):
        table = read_table(path)
        if table is not None and set(table) == {"about", "value"}:
            yield from _readable(table, path)


def _readable(table: Table, path: Path) -> Iterator[Result]:
    try:
        yield from _runs(table)
    except (KeyError, TypeError):  # fields that it lacks, or has too many
        raise InputError(
            f"'{path}' was written by another version of fedgram: move it away; what its runs found is "
            "collected anew where they are still there.",
            field="out",
        ) from None


def file_name(result: Result) -> str:
    """The file that a run belongs to."""
    more = f"-rounds{result.rounds}" + ("-larger" if result.larger else "")
    return (
        f"{result.scale}-{result.setting}-{result.dataset}-{result.backbone}-E{result.epochs}{more}.parquet"
    )


def _shared(result: Result) -> dict[str, Any]:
    """What all runs of a file have in common."""
    names = ("scale", "setting", "dataset", "kind", "backbone", "epochs", "rounds", "larger")
    return {name: getattr(result, name) for name in names}


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    return dict(read_json(path)["files"]) if path.exists() else {}


def _table(runs: list[Result]) -> Table:
    about, values = [], []
    for run in runs:
        words, arrays = _parts(run)
        absent = {name: list(array.shape) for name, array in arrays.items() if np.isnan(array).all()}
        held = {name: array for name, array in arrays.items() if name not in absent}
        shapes = {name: list(array.shape) for name, array in held.items()}
        numbers = np.concatenate([np.ravel(array) for array in held.values()]).astype(np.float64)
        about += [json.dumps(words | {"shapes": shapes, "absent": absent}), *[""] * (len(numbers) - 1)]
        values.append(numbers)
    return {"about": np.array(about, dtype=object), "value": np.concatenate(values)}


def _parts(run: Result) -> tuple[dict[str, Any], dict[str, Array]]:
    """The words of a run, and its arrays by name, 'error.barycenter' for an entry of a dictionary."""
    words: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    for each in fields(Result):
        value = getattr(run, each.name)
        if each.name in BY_REFERENCE:
            arrays |= {f"{each.name}.{reference}": array for reference, array in value.items()}
        elif isinstance(value, np.ndarray):
            arrays[each.name] = value
        else:
            words[each.name] = asdict(value) if isinstance(value, Procedure) else value
    return words, arrays


def _runs(table: Table) -> Iterator[Result]:
    for start in np.flatnonzero(table["about"] != ""):
        words = json.loads(str(table["about"][start]))
        arrays = {name: np.full(shape, np.nan) for name, shape in words.pop("absent").items()}
        for name, shape in words.pop("shapes").items():
            arrays[name] = table["value"][start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        yield Result(**words | _nested(arrays) | {"procedure": Procedure(**words["procedure"])})


def _nested(arrays: dict[str, Array]) -> dict[str, Any]:
    """Arrays by field, those of 'error.barycenter' in the dictionary of 'error'."""
    plain: dict[str, Any] = {name: array for name, array in arrays.items() if "." not in name}
    for field in BY_REFERENCE:
        parts = {
            name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{field}.")
        }
        plain[field] = parts
    return plain
