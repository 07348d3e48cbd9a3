"""Errors to plant in the package and in committed results, each with the check that must notice it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedgram.paper.networks.results import Result


@dataclass(frozen=True)
class Mutation:
    """One planted error.

    name: what is wrong; file: in src/fedgram; before, after: source text, of which `before` occurs once;
    caught_by: a test ('tests/...::test_...') or a claim at quick scale ('experiment: claim').
    """

    name: str
    file: str
    before: str
    after: str
    caught_by: str

    @property
    def is_claim(self) -> bool:
        """Whether a claim, not a test, notices it."""
        return not self.caught_by.startswith("tests/")


_ENTRIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["mutation"]
MUTATIONS = tuple(Mutation(**entry) for entry in _ENTRIES)

Change = Callable[[Result], Result]


def _scale(name: str, factor: float) -> Change:
    """Multiply a field of a result: an array, or arrays by reference."""

    def change(run: Result) -> Result:
        value = getattr(run, name)
        scaled = (
            {key: factor * each for key, each in value.items()} if isinstance(value, dict) else factor * value
        )
        return replace(run, **{name: scaled})

    return change


COMMITTED = "tests/paper/test_networks_committed.py::test_errors_are_those_of_the_grams"
RESULTS: dict[str, tuple[Change, str]] = {
    "a results file saved again with errors x 0.1": (_scale("error", 0.1), COMMITTED),
    "a results file saved again with direction errors x 0.1": (_scale("direction_error", 0.1), COMMITTED),
    "a results file saved again with Gram matrices x 1.001": (_scale("grams", 1.001), COMMITTED),
}
"""Errors in committed results: the change of every run, and the test that must notice it."""
