"""What all runs of a stack have in common."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Real
from operator import index
from typing import Any, Literal

from fedgram._util.errors import InputError, check_type
from fedgram.theory.penalty import Penalty

Precision = Literal["tf32", "fp32", "bf16", "fp64"]
PRECISIONS = ("tf32", "fp32", "bf16", "fp64")


@dataclass(frozen=True)
class TrainConfig:
    """The round protocol, objective and optimizer; the defaults are the paper's.

    features is P, the width of the feature layer. Within a round the learning rate follows half a cosine
    from learning_rate to final_learning_rate. clip bounds each model's global gradient norm. precision is
    that of the matrix products (tf32 acts on a GPU only); fp64 computes everything in double precision.
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

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Real) and not 0 < float(value) < float("inf"):
                raise InputError(f"{each.name} must be positive, not {float(value):g}.", field=each.name)
        for name in ("rounds", "epochs", "batch", "features"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("learning_rate", "final_learning_rate", "clip"):
            check_type(getattr(self, name), Real, f"{name} is a positive number")
        check_type(self.penalty, Penalty, "Penalty(features=0.01, head=0.01) makes one")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"There is no precision '{self.precision}'; there are {', '.join(PRECISIONS)}.",
                field="precision",
            )


def _whole(name: str, value: Any) -> int:
    """A whole number, NumPy's included, as Python's."""
    try:
        return index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, not {value!r}.", field=name) from None
