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
    """Multiply a field of a result: a number, an array, or arrays by reference."""

    def change(run: Result) -> Result:
        value = getattr(run, name)
        scaled = (
            {key: factor * each for key, each in value.items()} if isinstance(value, dict) else factor * value
        )
        return replace(run, **{name: scaled})

    return change


def _permute_gap_terms(run: Result) -> Result:
    return replace(run, gap_terms=run.gap_terms[[1, 2, 0]])


def _swap_errors(run: Result) -> Result:
    return replace(run, train_mse=run.test_mse, test_mse=run.train_mse)


_COMMITTED = "tests/paper/test_networks_committed.py::test_"
_ERRORS = f"{_COMMITTED}errors_are_those_of_the_grams"
_PREDICTIONS = f"{_COMMITTED}predictions_are_those_of_the_moments"
_OBJECTIVES = f"{_COMMITTED}objectives_and_training_errors_agree"
_CHANGES: dict[str, tuple[Change, str]] = {
    "errors x 0.1": (_scale("error", 0.1), _ERRORS),
    "direction errors x 0.1": (_scale("direction_error", 0.1), _ERRORS),
    "Gram matrices x 1.001": (_scale("grams", 1.001), _ERRORS),
    "trajectory errors x 0.1": (
        _scale("trajectory_error", 0.1),
        f"{_COMMITTED}trajectory_errors_are_those_of_the_exact_recursion",
    ),
    "δ x 0.5": (_scale("delta", 0.5), f"{_COMMITTED}distances_to_selected_heads_are_possible"),
    "returned Gram matrices x 0.9": (
        _scale("returned_grams", 0.9),
        f"{_COMMITTED}shared_grams_are_those_of_averaged_heads",
    ),
    "least variance x 3": (_scale("least_variance", 3.0), _PREDICTIONS),
    "terms of the gap permuted": (_permute_gap_terms, _PREDICTIONS),
    "shared objectives x 0.9": (_scale("shared_objective", 0.9), _OBJECTIVES),
    "objective gaps x 0.1": (_scale("objective_gap", 0.1), _OBJECTIVES),
    "training errors x 0.5": (_scale("train_mse", 0.5), _OBJECTIVES),
    "training and test errors swapped": (_swap_errors, _OBJECTIVES),
}
RESULTS = {f"a results file saved again with {name}": entry for name, entry in _CHANGES.items()}
"""Errors in committed results: the change of every run, and the test that must notice it."""
