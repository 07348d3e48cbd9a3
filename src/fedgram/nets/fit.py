"""Local training of all models through one round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from fedgram.nets import cuda
from fedgram.nets.batches import Batches
from fedgram.nets.cuda import arithmetic
from fedgram.nets.model import translate_errors
from fedgram.nets.objective import Terms, losses
from fedgram.nets.optimizer import AdamW, schedule
from fedgram.nets.stack import ModelStack, Tensors, parts
from fedgram.runs.train_config import TrainConfig

RARE = 0.1
"""Shapes that make up less than this share of all models' steps are not compiled: it would take longer."""

OnEpoch = Callable[[int], None]
"""Told how many epochs of a round are behind."""


class Fit:
    """A stack on its data, ready to be trained; `terms` is filled in place before each round.

    Nothing here moves in memory, so that a GPU can repeat a step without being told anew.
    """

    def __init__(self, stack: ModelStack, batches: Batches, terms: Terms, settings: TrainConfig) -> None:
        self.stack, self.batches, self.terms, self.settings = stack, batches, terms, settings
        self.now = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.total = torch.zeros(len(stack), dtype=stack.dtype, device=stack.device)
        self.fused, self.common = cuda.compiled(losses, stack.device), self._common()
        self.lanes = cuda.Lanes(stack.device, stack.together < len(stack))
        steps = [-(-count // batches.batch) for count in batches.counts]
        rates = schedule(settings, steps).to(stack.device, stack.dtype)
        # Trial steps at rates of 0 change no parameter; there may be more of them than steps in a round.
        self.rates = rates.new_zeros(len(rates) + cuda.WARM_UP, *rates.shape[1:])
        with self._arithmetic(), self._kept_buffers():
            # So that the optimizer reads both in one order; batched products are faster for it as well.
            models, size = self.common[0]
            stack.lay_out_like(self.gradients(slice(0, models), size)[1])
            self.optimizer = optimizer_on(stack.device, stack.dtype)(stack.parameters, settings.clip)
            self.steps = self._steps()
        self.rates[: len(rates)] = rates

    def round(self, number: int, on_epoch: OnEpoch = lambda epochs: None) -> Tensor:
        """Train every model for a round; their mean losses over the last epoch (K,)."""
        self.optimizer.reset()
        self.now.zero_()
        with self._arithmetic():
            for epoch in range(self.settings.epochs):
                self.total.zero_()
                self.batches.shuffle(number, epoch)
                for step, take in enumerate(self.steps):
                    self.batches.select(step)
                    take()
                on_epoch(epoch + 1)
        return self.total / self.batches.counted

    def step(self, sizes: tuple[int, ...]) -> None:
        """One step of every model whose client takes rows, sizes (M,) of them."""
        rates = self.rates.index_select(0, self.now)[0]
        with self.lanes as lanes:
            for turn, (models, size) in enumerate(self._pieces(sizes)):
                with lanes.lane(turn):
                    self.move(models, size, rates[self.batches.client[models]])
        self.now += 1

    def move(self, models: slice, size: int, rates: Tensor) -> None:
        """One step of some models that take the same number of rows: rates (K, 2)."""
        values, gradients = self.gradients(models, size)
        self.optimizer.step(models, gradients, rates)
        self.total[models] += size * values

    def gradients(self, models: slice, size: int) -> tuple[Tensor, Tensors]:
        """Losses (K,) of some models at the selected step, and their gradients (K, ...) by name."""
        buffers = {name: value[models] for name, value in self.stack.buffers.items()}
        leaves = {name: p[models].detach().requires_grad_() for name, p in self.stack.parameters.items()}
        batch = self.batches.take(models, size)
        terms, penalty = self.terms.of(models), self.settings.penalty
        compute = self.fused if (models.stop - models.start, size) in self.common else losses
        with translate_errors(size):
            values = compute(self.stack, leaves, buffers, batch, terms, penalty)
            found = torch.autograd.grad(
                values.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        return values.detach(), dict(zip(leaves, found, strict=True))

    def _arithmetic(self) -> AbstractContextManager[None]:
        self.stack.model.train()
        return arithmetic(self.settings.precision, self.stack.device)

    def _pieces(self, sizes: tuple[int, ...]) -> list[tuple[slice, int]]:
        """Ranges of models that are computed at once, and the rows each of them takes.

        Only models with as many rows go together: BatchNorm would see the padding of others.
        """
        runs = len(self.stack) // len(sizes)
        pieces, start = [], 0
        for size, clients in groupby(sizes):
            models = slice(start, start + runs * len(list(clients)))
            start = models.stop
            if size:
                pieces += [(piece, size) for piece in parts(models, self.stack.together)]
        return pieces

    def _common(self) -> list[tuple[int, int]]:
        """How many models go together with how many rows, the most common first, without RARE ones."""
        times: Counter[tuple[int, int]] = Counter()
        for step in range(self.batches.steps):
            for models, size in self._pieces(self.batches.sizes(step)):
                times[models.stop - models.start, size] += models.stop - models.start
        ranked = times.most_common()
        return [shape for shape, count in ranked if count >= RARE * times.total()] or [ranked[0][0]]

    def _steps(self) -> list[Callable[[], None]]:
        """The steps of an epoch; those with the same sizes are one and the same."""
        sizes = [self.batches.sizes(step) for step in range(self.batches.steps)]
        recorded, ready = cuda.Recorder(self.stack.device), {}
        for each in sorted(set(sizes)):
            self.now.zero_()
            ready[each] = recorded(partial(self.step, each))
        self.optimizer.captured()
        return [ready[each] for each in sizes]

    @contextmanager
    def _kept_buffers(self) -> Iterator[None]:
        """Undo what trial steps do to the statistics of BatchNorm."""
        kept = {name: value.clone() for name, value in self.stack.buffers.items()}
        yield
        for name, value in kept.items():
            self.stack.buffers[name].copy_(value)


def optimizer_on(device: torch.device, dtype: torch.dtype) -> type[AdamW]:
    """The fastest AdamW for parameters of this type on a device."""
    if device.type != "cuda" or dtype != torch.float32:
        return AdamW
    from fedgram.nets.fused_adamw import FusedAdamW

    return FusedAdamW
