"""Clients' rows on the device, with what the one-time exchange of moments tells each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem, Split
from fedgram.nets.model import to_device_dtype
from fedgram.runs.procedure import Procedure

POOLED = "pooled"
"""Name of the only client of a centralized run."""

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class PooledMoments:
    """What a client learns of the others: pooled mean μ_g (C,), Σ_cen and Σ_within (C, C)."""

    mean: Array
    covariance: Array
    within: Array

    @classmethod
    def from_problem(cls, problem: Problem) -> PooledMoments:
        """The exchange among the clients of a problem."""
        pooled = problem.moments.pooled
        return cls(pooled.mean, pooled.covariance, pooled.within)


@dataclass(frozen=True, eq=False)
class ClientData:
    """M clients: rows (inputs (N_m, ...), targets (N_m, C) in double precision), and target moments.

    inputs (N, ...) of all training rows lie on the device once, client by client; those in `train` are parts
    of them. client_weights p_m (M,), mean (M, C), covariance (M, C, C) of training targets; test rows may be
    none.
    """

    names: tuple[str, ...]
    inputs: Tensor
    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    client_weights: Tensor
    mean: Tensor
    covariance: Tensor

    @classmethod
    def from_splits(
        cls,
        train: Mapping[str, Split],
        test: Mapping[str, Split],
        device: torch.device,
        dtype: torch.dtype = torch.float64,
    ) -> ClientData:
        """Clients by name; dtype is that of the networks, in which inputs are held."""
        empty = {name: Split(split.inputs[:0], split.targets[:0]) for name, split in train.items()}
        inputs, targets = _on(train, device, dtype)
        counts = torch.tensor([len(each) for each in targets], dtype=torch.float64, device=device)
        return cls(
            names=tuple(train),
            inputs=inputs,
            train=_by_client(inputs, targets),
            test=_by_client(*_on(test or empty, device, dtype)),
            client_weights=counts / counts.sum(),
            mean=torch.stack([each.mean(dim=0) for each in targets]),
            covariance=torch.stack(
                [each.mT.cov(correction=0).reshape(2 * (each.shape[1],)) for each in targets]
            ),
        )

    @classmethod
    def federated(cls, problem: Problem, device: torch.device, dtype: torch.dtype) -> ClientData:
        """The clients of a problem."""
        return cls.from_splits(problem.train, problem.test, device, dtype)

    @classmethod
    def centralized(cls, problem: Problem, device: torch.device, dtype: torch.dtype) -> ClientData:
        """One client with the rows of all."""
        test = {POOLED: pooled(problem.test)} if problem.test else {}
        return cls.from_splits({POOLED: pooled(problem.train)}, test, device, dtype)

    def __len__(self) -> int:
        return len(self.names)

    def shift(self, procedure: Procedure) -> Tensor:
        """What a procedure subtracts from each client's targets, (M, C)."""
        return self.mean if procedure.centered else torch.zeros_like(self.mean)

    def deficit(self, procedure: Procedure, exchange: PooledMoments) -> Tensor:
        """γ (Σ_cen - Σ_m) of each client, (M, C, C); with centered targets Σ_cen is Σ_within."""
        wanted = exchange.within if procedure.centered else exchange.covariance
        return procedure.corrected * (torch.as_tensor(wanted).to(self.covariance) - self.covariance)

    def distance(self, procedure: Procedure, exchange: PooledMoments) -> Tensor:
        """d_m = μ_m - μ_g, (M, C); 0 with centered targets, and for a client that has all rows."""
        apart = self.mean - torch.as_tensor(exchange.mean).to(self.mean)
        return torch.zeros_like(apart) if procedure.centered or procedure.centralized else apart


def pooled(splits: Mapping[str, Split]) -> Split:
    """The rows of all clients, in order."""
    return Split(
        np.concatenate([split.inputs for split in splits.values()]),
        np.concatenate([split.targets for split in splits.values()]),
    )


def _on(splits: Mapping[str, Split], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Inputs (N, ...) of all clients, converted before they go to the device, and targets of each."""
    inputs = torch.from_numpy(np.concatenate([split.inputs for split in splits.values()]))
    targets = [torch.tensor(split.targets, device=device) for split in splits.values()]
    return to_device_dtype(inputs, dtype).to(device), targets


def _by_client(inputs: Tensor, targets: list[Tensor]) -> tuple[Rows, ...]:
    """Each client's part of inputs (N, ...), with its targets; nothing is copied."""
    return tuple(zip(inputs.split([len(each) for each in targets]), targets, strict=True))
