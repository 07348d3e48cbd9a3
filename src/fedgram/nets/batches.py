"""Training rows on the device, and the order in which each model takes them.

The order is a hash of seed, client, round, epoch and row: the same on every device, however models are
stacked, with no generator to save.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor

from fedgram.nets.model import key

GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio as a signed number: the increment of SplitMix64


class Batches:
    """Rows of M clients, taken by K models in client-major order: inputs (M, N, ...), targets (M, N, C).

    Clients with fewer than N rows are padded with zeros, which are never taken. `select` chooses a step of
    the epoch, `take` gives its rows.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        clients: Sequence[str],
        seeds: Sequence[int],
        shift: Tensor,
        batch: int,
    ) -> None:
        """Rows of each client, its name, the seed of each run, and what to subtract from targets (K, C)."""
        device, distinct = shift.device, sorted(set(seeds))
        self.inputs = torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True)
        self.targets = torch.nn.utils.rnn.pad_sequence(list(targets), batch_first=True)
        self.counts = [len(each) for each in inputs]
        self.batch, self.shift = batch, shift
        self.steps = max(ceil(count / batch) for count in self.counts)
        self.counted = torch.tensor(self.counts, device=device).repeat_interleave(len(seeds))
        self.client = torch.arange(len(clients), device=device).repeat_interleave(len(seeds))
        self.seed = torch.tensor([distinct.index(seed) for seed in seeds] * len(clients), device=device)
        keys = [[key("order", seed, client) for seed in distinct] for client in clients]
        self.keys = torch.tensor(keys, device=device)
        row = torch.arange(self.inputs.shape[1], device=device)
        self.row = row * GOLDEN
        self.absent = row >= torch.tensor(self.counts, device=device)[:, None, None]
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
        client = self.client[models, None]
        rows = self.rows[self.client[models], self.seed[models], :size]
        return self.inputs[client, rows], self.targets[client, rows] - self.shift[models, None]


def mixed(state: Tensor) -> Tensor:
    """The output function of SplitMix64 on int64, elementwise; products wrap around."""
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (state ^ ((state >> 31) & 0x1FFFFFFFF)) & torch.iinfo(torch.int64).max


def mixed_number(round: int, epoch: int) -> int:
    """One number for a round and an epoch, small enough to be added to a key without overflow in Python."""
    return key("epoch", round, epoch) >> 1
