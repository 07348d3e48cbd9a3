"""What a round of training leaves to be measured."""

from __future__ import annotations

from dataclasses import dataclass

from fedgram._util.arrays import Array
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class Run:
    """One federation to be trained: a procedure and a seed."""

    procedure: Procedure
    seed: int

    @property
    def name(self) -> str:
        """Words for it, as in file names."""
        return f"{self.procedure.name}/seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class Round:
    """What one run recorded in one round, number 1, 2, ...; arrays in double precision.

    head W (C, P) and bias b (C,) after averaging; returned_heads (M, C, P) and returned_biases (M, C), what
    was averaged; local_objective (M,), eq. (1) of each client's own model before averaging;
    shared_objective (M,), the same with the averaged head and bias; train_mse and test_mse (M, 3) with the
    averaged head under each of the BIAS_RULES, NaN where a client has no test rows; clipped (M,),
    directions that a solved return left out; training_loss (M,), minibatch mean of the last epoch with all
    terms. Objectives and errors are in evaluation mode. A centralized run has one client: the pooled data.
    """

    number: int
    head: Array
    bias: Array
    returned_heads: Array
    returned_biases: Array
    local_objective: Array
    shared_objective: Array
    train_mse: Array
    test_mse: Array
    clipped: Array
    training_loss: Array
