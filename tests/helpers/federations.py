"""What tests of Flower federations share: settings, procedures, and the in-process reference of tables."""

import numpy as np
import psutil

from fedgram.data.encoding import Encoding
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.tables.read_rows import TableSpec, read_splits

SITES = ("coast", "ridge", "valley")
SETTINGS = {"rounds": 3, "epochs": 2, "batch": 16, "features": 6, "precision": "fp64"}
HEAD_SHARING = (
    "ordinary",
    "proximal+corrected",
    "solved+corrected+offset",
    "aligned+private",
    "centered+corrected+independent",
)


def read_standardized(path, spec: TableSpec) -> Problem:
    """Read a table and standardize it in one process, as `fedgram advise` does."""
    train, test, _ = read_splits(str(path), spec, 0, np.float64)
    return standardize(Problem("table", "GENERATED", train, test, tuple(spec.targets)))


def standardize(problem: Problem) -> Problem:
    """Standardize inputs and targets of a problem with pooled moments."""
    inputs, targets = (
        [f"{letter}{number}" for number in range(getattr(first, part).shape[1])]
        for first in [next(iter(problem.train.values()))]
        for letter, part in (("x", "inputs"), ("y", "targets"))
    )

    def columns(split: Split) -> dict:
        values = np.hstack([split.inputs, split.targets]).T
        return dict(zip([*inputs, *targets], values, strict=True))

    tables = {site: columns(split) for site, split in problem.train.items()}
    encoding = Encoding.fit(tables, inputs=inputs, targets=targets)

    def encode(part: dict[str, Split]) -> dict[str, Split]:
        return {
            site: Split(
                encoding.encode_inputs(columns(split), site), encoding.encode_targets(columns(split), site)
            )
            for site, split in part.items()
        }

    return Problem(
        problem.name, problem.kind, encode(problem.train), encode(problem.test), problem.target_names,
        validation=encode(problem.validation),
    )  # fmt: skip


def is_running(program: str, process: psutil.Process) -> bool:
    """Whether a process runs a program."""
    try:
        return program in " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return False
