"""Results on disk: a table of one column of numbers, in which a run begins where `about` is not empty.

`about` is a JSON document with the run's words and the shapes of its arrays, whose values follow in that
order; arrays of NaN, such as the test error without test rows, are named under `absent` and have none. So
each file says all about itself; `manifest.json` beside them is for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import fedgram
from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json, write_json
from fedgram.paper.networks.results import Result
from fedgram.paper.tables import Table, digest, read_table, write_table
from fedgram.runs.procedure import Procedure

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
