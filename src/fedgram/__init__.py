"""fedgram: federated regression whose outcome is known before it is trained."""

from fedgram._util.errors import AccuracyError, InputError
from fedgram.data.tables.read_moments import read_moments
from fedgram.theory.correct import Correction, correct
from fedgram.theory.explain import Gap, explain
from fedgram.theory.geometry.barycenter import Barycenter, barycenter
from fedgram.theory.moments import Moments, Pooled
from fedgram.theory.penalty import Penalty
from fedgram.theory.predict import Prediction, phi, predict
from fedgram.theory.select import align, closest_head, solve, unshrink

__version__ = "0.1.0"

__all__ = [
    "AccuracyError",
    "Barycenter",
    "Correction",
    "Gap",
    "InputError",
    "Moments",
    "Penalty",
    "Pooled",
    "Prediction",
    "align",
    "barycenter",
    "closest_head",
    "correct",
    "explain",
    "phi",
    "predict",
    "read_moments",
    "solve",
    "unshrink",
]
