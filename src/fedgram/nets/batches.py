"""Training rows on the device, and the order in which each model takes them.

The order is a hash of seed, client, round, epoch and row: the same on every device, however models are
stacked, with no generator to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import torch
from torch import Tensor

from fedgram.nets.model import key

GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio as a signed number: the increment of SplitMix64


class Batches:
    """Rows of M clients, one client after the other, taken by K models in client-major order.

    inputs (N, ...) and targets (N, C) are held as they are given. `select` chooses a step of the epoch,
    `take` gives its rows. Orders are as long as that of the client with the most rows; what others have
    beyond their own is never taken.
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
        """How many rows each client has, the seed of each run, and what to subtract from targets (K, C)."""
        device, distinct = shift.device, sorted(set(seeds))
        self.inputs, self.targets, self.counts = inputs, targets, list(clients.values())
        self.batch, self.shift = batch, shift
        self.steps = max(ceil(count / batch) for count in self.counts)
        counts = torch.tensor(self.counts, device=device)
        self.counted = counts.repeat_interleave(len(seeds))
        self.first = (counts.cumsum(0) - counts).repeat_interleave(len(seeds))  # row of each model's client
        self.client = torch.arange(len(clients), device=device).repeat_interleave(len(seeds))
        self.seed = torch.tensor([distinct.index(seed) for seed in seeds] * len(clients), device=device)
        keys = [[key("order", seed, client) for seed in distinct] for client in clients]
        self.keys = torch.tensor(keys, device=device)
        row = torch.arange(max(self.counts), device=device)
        self.row = row * GOLDEN
        self.absent = row >= counts[:, None, None]
        width = self.steps * batch
        self.order = torch.zeros(len(clients), len(distinct), width, dtype=torch.int64, device=device)
        self.rows = self.order[..., :batch].clone()

    def shuffle(self, round: int, epoch: int) -> None:
        """Draw the order (M, seeds, N) of an epoch."""
        state = mixed(self.keys + mixed_number(round, epoch))
        order = mixed(state[..., None] + self.row).masked_fill(self.absent, torch.iinfo(torch.int64).max)
        self.order[..., : len(self.row)] = order.argsort(dim=-1, stable=True)

    def select(self, step: int) -> None:
        """Make `take` give the rows of this step of the epoch."""
        self.rows.copy_(self.order[..., step * self.batch : (step + 1) * self.batch])

    def sizes(self, step: int) -> tuple[int, ...]:
        """How many rows each client takes at this step of an epoch, (M,); 0 when its epoch is over."""
        return tuple(min(max(count - step * self.batch, 0), self.batch) for count in self.counts)

    def take(self, models: slice, size: int) -> tuple[Tensor, Tensor]:
        """Inputs (K, size, ...) and targets (K, size, C) of these models at the selected step."""
        own = self.rows[self.client[models], self.seed[models], :size]
        rows = self.first[models, None] + own
        return self.inputs[rows], self.targets[rows] - self.shift[models, None]


def mixed(state: Tensor) -> Tensor:
    """The output function of SplitMix64 on int64, elementwise; products wrap around."""
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (state ^ ((state >> 31) & 0x1FFFFFFFF)) & torch.iinfo(torch.int64).max


def mixed_number(round: int, epoch: int) -> int:
    """One number for a round and an epoch, small enough to be added to a key without overflow in Python."""
    return key("epoch", round, epoch) >> 1
