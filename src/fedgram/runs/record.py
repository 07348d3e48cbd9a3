"""Records of a run and of its rounds."""

from __future__ import annotations

from dataclasses import dataclass

from fedgram._util.arrays import Array
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class Run:
    """One federation: a procedure and a seed."""

    procedure: Procedure
    seed: int

    @property
    def name(self) -> str:
        """Name, which is also the path of its folder: 'ordinary/seed-0'."""
        return f"{self.procedure.name}/seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class Round:
    """Record of one round, number 1, 2, ...; arrays in double precision.

    head W (C, P) and bias b (C,): after averaging.
    returned_heads (M, C, P) and returned_biases (M, C): before averaging.
    local_objective (M,): eq. (1) of each client's own model before averaging.
    shared_objective (M,): eq. (1) with the averaged head and bias.
    train_mse and test_mse (M, 3): with the averaged head under each of BIAS_RULES; NaN without test rows.
    clipped (M,): directions that a solved return dropped.
    training_loss (M,): minibatch mean of the last epoch with all terms.

    Objectives and errors use evaluation mode, and are NaN in rounds that are not measured. A centralized run
    has one client, the pooled data.
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
