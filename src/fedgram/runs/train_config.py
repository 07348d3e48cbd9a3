"""Configuration that all runs of a stack share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Real
from operator import index
from typing import Any, Literal, get_args

from fedgram._util.errors import InputError, check_type
from fedgram.theory.penalty import Penalty

Precision = Literal["tf32", "fp32", "fp16", "bf16", "fp64"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
Decay = Literal["round", "run"]


@dataclass(frozen=True)
class TrainConfig:
    """Round protocol, objective and optimizer; the defaults are the paper's.

    Parameters
    ----------
    rounds : int
        Rounds of averaging.
    epochs : int
        Local epochs in each round.
    batch : int
        Rows of a minibatch.
    features : int
        Width P of the feature layer, at least the number of targets.
    penalty : Penalty
        λ_H on features and λ_W on the head.
    learning_rate : float
        Start of the half-cosine schedule.
    final_learning_rate : float
        End of the half-cosine schedule.
    clip : float
        Bound on each model's global gradient norm.
    precision : {'tf32', 'fp32', 'fp16', 'bf16', 'fp64'}
        Precision of matrix products; tf32 has an effect only on a GPU, fp16 and bf16 need one, and fp64
        applies to everything.
    decay : {'round', 'run'}
        Whether the learning rate falls within each round, or over all of them.
    measure_every : int
        Measure objectives and errors after every k-th round and the last; heads are stored after each.

    Raises
    ------
    InputError
        If a value is not positive, not an integer where one is needed, or of another type.

    Examples
    --------
    >>> from fedgram import TrainConfig
    >>> config = TrainConfig(rounds=3, epochs=20, features=8)
    >>> config.batch, config.learning_rate
    (256, 0.001)
    """

    rounds: int = 8
    epochs: int = 4000
    batch: int = 256
    features: int = 512
    penalty: Penalty = field(default_factory=Penalty)
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-5
    clip: float = 5.0
    precision: Precision = "tf32"
    decay: Decay = "round"
    measure_every: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Real) and not 0 < float(value) < float("inf"):
                raise InputError(f"{each.name} must be positive, not {float(value):g}.", field=each.name)
        for name in ("rounds", "epochs", "batch", "features", "measure_every"):
            object.__setattr__(self, name, _to_int(name, getattr(self, name)))
        for name in ("learning_rate", "final_learning_rate", "clip"):
            check_type(getattr(self, name), Real, f"{name}=", "Pass a positive number")
        check_type(self.penalty, Penalty, "penalty=", "Build it with Penalty(features=0.01, head=0.01)")
        for name, known in (("precision", PRECISIONS), ("decay", get_args(Decay))):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"Unknown {name} '{value}'. Choose from {', '.join(known)}.", field=name)

    def is_measured(self, number: int) -> bool:
        """Whether objectives and errors are measured after round number 1, 2, ...."""
        return number % self.measure_every == 0 or number == self.rounds


def _to_int(name: str, value: Any) -> int:
    """Convert an integer, NumPy's included, to int."""
    try:
        return index(value)
    except TypeError:
        raise InputError(f"{name} must be an integer, not {value!r}.", field=name) from None
