"""Local training of all models of a stack through one round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from fedgram.nets import cuda
from fedgram.nets.batches import Batches
from fedgram.nets.gradients import (
    EAGER,
    LARGEST_SLOPE,
    SMALLEST_SLOPE,
    Parts,
    adapt_largest_slope,
    differentiate,
    list_product_weights,
)
from fedgram.nets.model import translate_errors
from fedgram.nets.objective import Terms
from fedgram.nets.optimizer import AdamW, schedule
from fedgram.nets.stack import BACKBONE_PREFIX, ModelStack, Tensors, is_unstacked, split_slice
from fedgram.nets.stacked_layers import set_stacked
from fedgram.runs.train_config import TrainConfig

RARE = 0.1
"""Shapes below this share of all models' steps are not compiled: compilation would take longer."""

FEWEST_COMPILED = 10_000
"""With fewer steps than these in all rounds, compilation would take longer than it saves: 1 ms a step for 72
ResMLPs on an H200, where it takes 12 s with a warm cache of the compiler and 33 s without."""

BRIDGED = 8
"""Models without rows at a step that are computed anyway, rather than as two ranges. Two rounds of 48 sites
with 12 to 7,500 rows (wide-deep-64, two ARM cores) take 7.3 s with 0, 6.0 s with 8 or 16, 24 s with all."""

OnEpoch = Callable[[int], None]
"""Called with the number of finished epochs of a round."""


class Fit:
    """A stack with its rows and objective, ready to train; fill `terms` in place before each round.

    The optimizer restarts every round, except for the models of the mask `continues` (K,). No tensor moves in
    memory, so that a GPU can replay recorded steps.
    """

    def __init__(
        self, stack: ModelStack, batches: Batches, terms: Terms, config: TrainConfig, continues: Tensor
    ) -> None:
        self.stack, self.batches, self.terms, self.config = stack, batches, terms, config
        self.continues = continues
        self.now = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.total = torch.zeros(len(stack), dtype=stack.dtype, device=stack.device)
        self.largest_slope = torch.full_like(self.total, LARGEST_SLOPE)  # in half precision
        self.compiled = EAGER
        if self._is_long:
            compiled: list[Any] = [cuda.compile_on_gpu(part, stack.device) for part in EAGER]
            self.compiled = Parts(*compiled)
        self.pads = len(set(batches.counts)) > 1 and can_pad(stack) and stack.device.type == "cpu"
        self.models_at_once = stack.trained_at_once(config.precision)
        set_stacked(stack.model, self.models_at_once > 1)
        self.common = self._common_shapes()
        self.streams = cuda.StreamPool(stack.device, is_unstacked(stack.model) and len(stack) > 1)
        self.steps_per_epoch = [-(-count // batches.batch) for count in batches.counts]
        # Warm-up steps at rate 0 change no parameter; there may be more of them than steps in a round.
        steps = config.epochs * max(self.steps_per_epoch) + cuda.WARM_UP
        shape = (steps, len(self.steps_per_epoch), 2, 2)  # step, client, restarts or continues, two rates
        self.rates = torch.zeros(shape, dtype=stack.dtype, device=stack.device)
        with self._precision(), self._restore_buffers():
            self.copies = self._copy_weights()
            # The optimizer then reads both in the same order, and batched products are faster.
            models, size = self.common[0]
            stack.match_layout(self.gradients(slice(0, models), size)[1])
            self.copies = self._copy_weights()
            self.optimizer = (
                AdamW(stack.parameters, config.clip, self.copies, skips=True)
                if self.pads
                else choose_optimizer(stack.device, stack.dtype)(stack.parameters, config.clip, self.copies)
            )
            self.steps = self._record_steps()

    def round(self, number: int, on_epoch: OnEpoch = lambda epochs: None) -> Tensor:
        """Train every model for a round; return their mean losses in the last epoch (K,)."""
        self.optimizer.reset(torch.ones_like(self.continues) if number == 1 else ~self.continues)
        self.now.zero_()
        self.largest_slope.fill_(LARGEST_SLOPE)
        for name, copy in self.copies.items():
            copy.copy_(self.stack.parameters[name])
        for kind in (False, True):
            rates = schedule(self.config, self.steps_per_epoch, number, continues=kind)
            self.rates[: len(rates), :, int(kind)] = rates.to(self.rates)
        with self._precision():
            for epoch in range(self.config.epochs):
                self.total.zero_()
                self.batches.shuffle(number, epoch)
                for step, run_step in enumerate(self.steps):
                    self.batches.select(step)
                    run_step()
                on_epoch(epoch + 1)
        return self.total / self.batches.model_counts

    def step(self, sizes: tuple[int, ...]) -> None:
        """Take one step of every model whose client has rows left; sizes (M,) counts them.

        Few models, as of one client in the last step of an epoch, do not fill a GPU, so they overlap.
        """
        rates = self.rates.index_select(0, self.now)[0]
        ranges = self._split_by_size(sizes)
        overlaps = self.models_at_once == 1 or len({size for _, size in ranges}) > 1
        with self.streams as streams:
            for turn, (models, size) in enumerate(ranges):
                with streams.use(turn if overlaps else 0):
                    values, gradients, unscale = self.gradients(models, size)
                    kind = self.continues[models].long()
                    own_rates = rates[self.batches.client[models], kind]
                    finite = self.optimizer.step(models, gradients, own_rates, unscale)
                    if finite is not None:
                        largest = self.largest_slope[models]
                        values = values.where(finite | (largest > SMALLEST_SLOPE), torch.nan)
                        self.largest_slope[models] = adapt_largest_slope(largest, finite)
                    self.total[models] += values * self._rows_of(models, size)
        self.now += 1

    def gradients(self, models: slice, size: int) -> tuple[Tensor, Tensors, Tensor | None]:
        """Return losses (K,) of some models at the selected step, and gradients (K, ...) by name.

        In half precision gradients of backbones are scaled; the last result (K,) undoes it.
        """
        stack, precision = self.stack, self.config.precision
        buffers = {name: value[models] for name, value in stack.buffers.items()}
        weights = stack.parameters | self.copies
        leaves = {name: value[models].detach().requires_grad_() for name, value in weights.items()}
        inputs, targets = self.batches.take(models, size)
        terms, penalty = self.terms.select(models), self.config.penalty
        row_weights = self.batches.row_weights[models, :size] if self.pads else None
        is_common = (models.stop - models.start, size) in self.common
        parts = self.compiled if is_common else EAGER
        with translate_errors(size):
            with cuda.autocast(precision, stack.device):
                outputs = parts.outputs(stack, leaves, buffers, inputs)
            # Last layers are small, and what the theory is about: they are not in half precision.
            detached = outputs.detach().to(stack.dtype).requires_grad_()
            values = parts.losses(leaves, detached, targets, terms, penalty, row_weights)
            last = {name: leaf for name, leaf in leaves.items() if not name.startswith(BACKBONE_PREFIX)}
            slope, *found = torch.autograd.grad(values.sum(), [detached, *last.values()])
            gradients, unscale = dict(zip(last, found, strict=True)), None
            if precision in cuda.HALF:
                slope, unscale = parts.scale(slope, self.largest_slope[models])
            backbone = {name: leaf for name, leaf in leaves.items() if name.startswith(BACKBONE_PREFIX)}
            gradients |= differentiate(outputs, backbone, slope)
        return values.detach(), {name: gradients[name] for name in leaves}, unscale

    def _copy_weights(self) -> Tensors:
        """Copy the weights that half precision multiplies by, so that steps need not convert them."""
        if self.config.precision not in cuda.HALF:
            return {}
        dtype, parameters = cuda.HALF[self.config.precision], self.stack.parameters
        return {name: parameters[name].to(dtype) for name in list_product_weights(self.stack)}

    def _precision(self) -> AbstractContextManager[None]:
        self.stack.model.train()
        return self.stack.use_precision(self.config.precision)

    def _rows_of(self, models: slice, size: int) -> int | Tensor:
        """Return how many rows each model has at the selected step."""
        return (self.batches.row_weights[models] > 0).sum(dim=1) if self.pads else size

    def _split_by_size(self, sizes: tuple[int, ...]) -> list[tuple[slice, int]]:
        """Split models into ranges with the same number of rows: BatchNorm would read padding.

        With padding, a range has clients with and without rows, and only long gaps are left out.
        """
        runs = len(self.stack) // len(sizes)
        if self.pads:
            return [
                (slice(runs * clients.start, runs * clients.stop), max(sizes[clients]))
                for clients in join_active(sizes, BRIDGED // runs)
            ]
        ranges, start = [], 0
        for size, clients in groupby(sizes):
            models = slice(start, start + runs * len(list(clients)))
            start = models.stop
            if size:
                ranges += [(part, size) for part in split_slice(models, self.models_at_once)]
        return ranges

    def _common_shapes(self) -> list[tuple[int, int]]:
        """List (models, rows) of all steps, the most common first, without RARE ones."""
        times: Counter[tuple[int, int]] = Counter()
        for step in range(self.batches.steps):
            for models, size in self._split_by_size(self.batches.sizes(step)):
                times[models.stop - models.start, size] += models.stop - models.start
        ranked = times.most_common()
        return [shape for shape, count in ranked if count >= RARE * times.total()] or [ranked[0][0]]

    @property
    def _is_long(self) -> bool:
        """Whether training has enough steps to compile them."""
        return self.config.rounds * self.config.epochs * self.batches.steps >= FEWEST_COMPILED

    def _record_steps(self) -> list[Callable[[], None]]:
        """Record the steps of an epoch; steps with the same sizes share one recording."""
        sizes = [self.batches.sizes(step) for step in range(self.batches.steps)]
        record, recorded = cuda.GraphRecorder(self.stack.device), {}
        for each in sorted(set(sizes)):
            self.now.zero_()
            recorded[each] = record(partial(self.step, each))
        self.optimizer.finish_capture()
        return [recorded[each] for each in sizes]

    @contextmanager
    def _restore_buffers(self) -> Iterator[None]:
        """Restore BatchNorm statistics after warm-up steps."""
        saved = {name: value.clone() for name, value in self.stack.buffers.items()}
        yield
        for name, value in saved.items():
            self.stack.buffers[name].copy_(value)


def join_active(sizes: tuple[int, ...], gap: int) -> list[slice]:
    """Return ranges of clients that have rows; those with at most `gap` clients between them are joined.

    Examples
    --------
    >>> join_active((64, 0, 3, 0, 0, 0, 9), gap=1)
    [slice(0, 3, None), slice(6, 7, None)]
    """
    ranges: list[slice] = []
    for client in (client for client, size in enumerate(sizes) if size):
        if ranges and client - ranges[-1].stop <= gap:
            ranges[-1] = slice(ranges[-1].start, client + 1)
        else:
            ranges.append(slice(client, client + 1))
    return ranges


def can_pad(stack: ModelStack) -> bool:
    """Whether rows of a minibatch do not affect each other, so that padding with weight 0 has no effect.

    This is known of the layers below only.
    """
    layers = (module for module in stack.model.modules() if not list(module.children()))
    return all(isinstance(layer, nn.Linear | nn.PReLU | nn.ReLU | nn.Identity) for layer in layers)


def choose_optimizer(device: torch.device, dtype: torch.dtype) -> type[AdamW]:
    """Return the fastest AdamW for a device and dtype."""
    if device.type != "cuda" or dtype != torch.float32:
        return AdamW
    from fedgram.nets.fused_adamw import FusedAdamW

    return FusedAdamW
