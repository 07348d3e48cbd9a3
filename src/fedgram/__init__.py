"""fedgram: federated regression whose outcome is known before it is trained."""

from fedgram.barycenter import Barycenter, barycenter
from fedgram.correct import Correction, correct
from fedgram.errors import AccuracyError, InputError
from fedgram.explain import Gap, explain
from fedgram.moments import Moments, Pooled
from fedgram.penalty import Penalty
from fedgram.predict import Prediction, phi, predict
from fedgram.select import align, closest_head, solve, unshrunk
from fedgram.tables import read_moments

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
    "unshrunk",
]
