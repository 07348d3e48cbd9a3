"""Clients' rows on the device, and the pooled moments that each client receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.nets.model import to_device_dtype
from fedgram.runs.procedure import Procedure

POOLED = "pooled"
"""Name of the only client of a centralized run."""

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class PooledMoments:
    """Moments of all clients' targets: mean μ_g (C,), covariance Σ_cen and within Σ_within (C, C)."""

    mean: Array
    covariance: Array
    within: Array

    @classmethod
    def from_problem(cls, problem: Problem) -> PooledMoments:
        """Pool the moments of a problem's clients, which may have one row or a constant target."""
        targets = [split.targets for split in problem.train.values()]
        rows = np.concatenate(targets)
        centered = np.concatenate([each - each.mean(axis=0) for each in targets])
        deviation = rows - rows.mean(axis=0)
        covariance, within = (each.T @ each / len(rows) for each in (deviation, centered))
        return cls(rows.mean(axis=0), covariance, within)


@dataclass(frozen=True, eq=False)
class ClientData:
    """Rows and target moments of M clients.

    inputs (N, ...) are all training rows, client by client; those in `train` are views of them. train, test
    and validation are pairs of inputs (N_m, ...) and targets (N_m, C) in double precision. client_weights p_m
    (M,), mean (M, C) and covariance (M, C, C) are of training targets.
    """

    names: tuple[str, ...]
    inputs: Tensor
    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    validation: tuple[Rows, ...]
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
        validation: Mapping[str, Split] | None = None,
    ) -> ClientData:
        """Copy rows by client name to a device; dtype is the networks' and applies to inputs."""
        empty = {name: Split(split.inputs[:0], split.targets[:0]) for name, split in train.items()}
        inputs, targets = _to_device(train, device, dtype)
        counts = torch.tensor([len(each) for each in targets], dtype=torch.float64, device=device)
        return cls(
            names=tuple(train),
            inputs=inputs,
            train=_split_by_client(inputs, targets),
            test=_split_by_client(*_to_device(test or empty, device, dtype)),
            validation=_split_by_client(*_to_device(validation or empty, device, dtype)),
            client_weights=counts / counts.sum(),
            mean=torch.stack([each.mean(dim=0) for each in targets]),
            covariance=torch.stack(
                [each.mT.cov(correction=0).reshape(2 * (each.shape[1],)) for each in targets]
            ),
        )

    @classmethod
    def from_problem(
        cls, problem: Problem, device: torch.device, dtype: torch.dtype, *, centralized: bool
    ) -> ClientData:
        """Copy a problem to a device; a centralized one becomes a single client with all rows."""
        parts: list[Mapping[str, Split]] = [problem.train, problem.test, problem.validation]
        if centralized:
            parts = [{POOLED: Split.concatenate(part.values())} if part else {} for part in parts]
        train, test, validation = parts
        return cls.from_splits(train, test, device, dtype, validation)

    @property
    def has_validation(self) -> bool:
        """Whether any client has validation rows."""
        return any(len(targets) for _, targets in self.validation)

    def __len__(self) -> int:
        return len(self.names)

    def target_arrays(self, part: str) -> list[Array]:
        """Return each client's targets (N_m, C) of a part: 'train', 'validation' or 'test'."""
        return [targets.cpu().numpy() for _, targets in getattr(self, part)]

    def shift(self, procedure: Procedure) -> Tensor:
        """Return the values that a procedure subtracts from each client's targets, (M, C)."""
        return self.mean if procedure.centered else torch.zeros_like(self.mean)

    def deficit(self, procedure: Procedure, pooled: PooledMoments) -> Tensor:
        """Return γ (Σ_cen - Σ_m) of each client, (M, C, C); Σ_within replaces Σ_cen for centered targets."""
        goal = pooled.within if procedure.centered else pooled.covariance
        return procedure.corrected * (torch.as_tensor(goal).to(self.covariance) - self.covariance)

    def distance(self, procedure: Procedure, pooled: PooledMoments) -> Tensor:
        """Return d_m = μ_m - μ_g, (M, C); 0 for centered targets and for centralized runs."""
        difference = self.mean - torch.as_tensor(pooled.mean).to(self.mean)
        return torch.zeros_like(difference) if procedure.centered or procedure.centralized else difference


def _to_device(
    splits: Mapping[str, Split], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Return inputs (N, ...) of all clients, converted before the copy, and targets of each."""
    inputs = torch.from_numpy(np.concatenate([split.inputs for split in splits.values()]))
    targets = [torch.tensor(split.targets, device=device) for split in splits.values()]
    return to_device_dtype(inputs, dtype).to(device), targets


def _split_by_client(inputs: Tensor, targets: list[Tensor]) -> tuple[Rows, ...]:
    """Pair views of inputs (N, ...) with each client's targets."""
    return tuple(zip(inputs.split([len(each) for each in targets]), targets, strict=True))
