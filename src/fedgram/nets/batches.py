"""Training rows on the device and each model's row order.

The order of an epoch is a hash of seed, client, round, epoch and row. It is the same on every device and in
every stack, and there is no generator state to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import torch
from torch import Tensor

from fedgram.nets.model import hash_key

GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio as a signed number: the increment of SplitMix64


class Batches:
    """Rows of M clients, read by K models in client-major order.

    Parameters
    ----------
    inputs, targets : tensor (N, ...), tensor (N, C)
        Rows of all clients, client by client.
    clients
        Number of rows of each client, by name.
    seeds
        Seed of each run.
    shift : tensor (K, C)
        Subtracted from the targets of each model.
    batch
        Rows of a minibatch.

    `row_weights` (K, batch) of the selected step are 1 / rows for the rows of each model's client and 0 for
    padding.
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        clients: Mapping[str, int],
        seeds: Sequence[int],
        shift: Tensor,
        batch: int,
    ) -> None:
        device, distinct = shift.device, sorted(set(seeds))
        self.inputs, self.targets, self.counts = inputs, targets, list(clients.values())
        self.batch, self.shift = batch, shift
        self.steps = max(ceil(count / batch) for count in self.counts)
        counts = torch.tensor(self.counts, device=device)
        self.model_counts = counts.repeat_interleave(len(seeds))
        self.first = (counts.cumsum(0) - counts).repeat_interleave(len(seeds))  # row of each model's client
        self.client = torch.arange(len(clients), device=device).repeat_interleave(len(seeds))
        self.seed = torch.tensor([distinct.index(seed) for seed in seeds] * len(clients), device=device)
        keys = [[hash_key("order", seed, client) for seed in distinct] for client in clients]
        self.keys = torch.tensor(keys, device=device)
        row = torch.arange(max(self.counts), device=device)
        self.row = row * GOLDEN
        self.absent = row >= counts[:, None, None]  # padding repeats the client's first row with weight 0
        width = self.steps * batch
        self.order = torch.zeros(len(clients), len(distinct), width, dtype=torch.int64, device=device)
        self.rows = self.order[..., :batch].clone()
        self.row_weights = torch.zeros(len(shift), batch, dtype=shift.dtype, device=device)

    def shuffle(self, round: int, epoch: int) -> None:
        """Draw the row order (M, seeds, N) of an epoch."""
        salt = hash_key("epoch", round, epoch) >> 1  # small enough to add to a key without overflow
        state = splitmix64(self.keys + salt)
        order = splitmix64(state[..., None] + self.row).masked_fill(self.absent, torch.iinfo(torch.int64).max)
        order = order.argsort(dim=-1, stable=True)  # absent rows come last
        self.order[..., : len(self.row)] = order.masked_fill(self.absent, 0)

    def select(self, step: int) -> None:
        """Set the step of the epoch that `take` reads."""
        self.rows.copy_(self.order[..., step * self.batch : (step + 1) * self.batch])
        sizes = (self.model_counts - step * self.batch).clamp(0, self.batch)[:, None]
        position = torch.arange(self.batch, device=sizes.device)
        self.row_weights.copy_((position < sizes) / sizes.clamp(min=1).to(self.row_weights.dtype))

    def sizes(self, step: int) -> tuple[int, ...]:
        """Return how many rows each client takes at a step of an epoch, (M,); 0 after its last."""
        return tuple(min(max(count - step * self.batch, 0), self.batch) for count in self.counts)

    def take(self, models: slice, size: int) -> tuple[Tensor, Tensor]:
        """Return inputs (K, size, ...) and targets (K, size, C) of some models at the selected step."""
        own = self.rows[self.client[models], self.seed[models], :size]
        rows = self.first[models, None] + own
        return self.inputs[rows], self.targets[rows] - self.shift[models, None]


def splitmix64(state: Tensor) -> Tensor:
    """Apply the output function of SplitMix64 to int64, elementwise; products wrap around."""
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (state ^ ((state >> 31) & 0x1FFFFFFFF)) & torch.iinfo(torch.int64).max
