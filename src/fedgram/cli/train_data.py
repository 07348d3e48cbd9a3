"""What `fedgram train` trains on: a dataset by name, or a person's own table."""

from __future__ import annotations

from pathlib import Path

from fedgram._util.errors import InputError
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.problem import Problem
from fedgram.data.tables.read_rows import Reading, read_table


def given_problem(dataset: str, data_dir: Path | None, options: Options, reading: Reading) -> Problem:
    """The dataset of a name, or the table in a file."""
    if dataset in registry.names() or not (Path(dataset).suffix or Path(dataset).exists()):
        _refuse_for_dataset(reading.given, "a CSV, TSV or Parquet file", dataset)
        return registry.load(dataset, data_dir, options)
    _refuse_for_dataset(
        {"--variant": options.variant, "--larger": options.larger}, "a dataset with a name", dataset
    )
    if missing := [flag for flag, value in reading.needed.items() if not value]:
        raise InputError(f"Training on a table needs {missing[0]}.", field=_field(missing[0]))
    return read_table(dataset, reading, options.seed)


def _refuse_for_dataset(flags: dict[str, object], kind: str, dataset: str) -> None:
    for flag, given in flags.items():
        if given:
            raise InputError(
                f"{flag} is for {kind}, and '{dataset}' is none; leave it out, or train on such.",
                field=_field(flag),
            )


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
