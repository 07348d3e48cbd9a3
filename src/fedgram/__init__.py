"""Federated regression whose outcome is known before training.

Theory needs NumPy and SciPy only and is imported at once. Everything else is imported on first use, so that
`import fedgram` stays fast and works without the extras.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import AccuracyError, InputError
from fedgram._util.version import __version__ as __version__
from fedgram.theory.correct import Correction, correct
from fedgram.theory.effects import Effects, effects
from fedgram.theory.explain import Gap, explain
from fedgram.theory.geometry.barycenter import Barycenter, barycenter
from fedgram.theory.intervals import Intervals, intervals
from fedgram.theory.moments import Moments
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.predict import Prediction, phi, predict
from fedgram.theory.select import align, closest_head, solve, unshrink

if TYPE_CHECKING:
    from fedgram.data.problem import Problem
    from fedgram.data.split import Split
    from fedgram.data.splits import hold_out
    from fedgram.data.tables.read_moments import read_moments
    from fedgram.data.tables.read_site_problem import read_site_problem
    from fedgram.runs.advice import Advice
    from fedgram.runs.measure import measure
    from fedgram.runs.procedure import Procedure
    from fedgram.runs.store import Runs, StoredRun
    from fedgram.runs.train_config import TrainConfig
    from fedgram.training import predict_rows, train
    from fedgram.training.advise import advise
    from fedgram.training.regressor import FederatedRegressor
    from fedgram.training.site_learning import Plan

__all__ = [
    "AccuracyError",
    "Advice",
    "Barycenter",
    "Correction",
    "Effects",
    "FederatedRegressor",
    "Gap",
    "InputError",
    "Intervals",
    "Moments",
    "Penalty",
    "Plan",
    "Pooled",
    "Prediction",
    "Problem",
    "Procedure",
    "Runs",
    "Split",
    "StoredRun",
    "TrainConfig",
    "advise",
    "align",
    "barycenter",
    "closest_head",
    "correct",
    "effects",
    "explain",
    "hold_out",
    "intervals",
    "measure",
    "phi",
    "predict",
    "predict_rows",
    "read_moments",
    "read_site_problem",
    "solve",
    "train",
    "unshrink",
]

_LAZY = {
    "Advice": "fedgram.runs.advice",
    "FederatedRegressor": "fedgram.training.regressor",
    "Plan": "fedgram.training.site_learning",
    "Problem": "fedgram.data.problem",
    "Split": "fedgram.data.split",
    "hold_out": "fedgram.data.splits",
    "read_moments": "fedgram.data.tables.read_moments",
    "read_site_problem": "fedgram.data.tables.read_site_problem",
    "measure": "fedgram.runs.measure",
    "Procedure": "fedgram.runs.procedure",
    "Runs": "fedgram.runs.store",
    "StoredRun": "fedgram.runs.store",
    "TrainConfig": "fedgram.runs.train_config",
    "advise": "fedgram.training.advise",
    "predict_rows": "fedgram.training",
    "train": "fedgram.training",
}

# Results are below the display layer, which they must not import.
DisplayMethods.load_display = staticmethod(lambda: import_module("fedgram.display.results"))


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedgram' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
