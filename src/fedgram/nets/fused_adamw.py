"""Clipping and AdamW of all models in two Triton kernels.

Tensors are cut into blocks. A table holds tensor, model, start and length of each block; another holds the
addresses of the gradients that autograd allocated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgram.nets.optimizer import CLIP_EPS, EPS, FIRST_DECAY, SECOND_DECAY, AdamW
from fedgram.nets.stack import Tensors

BLOCK, WARPS = 2048, 4  # numbers and warps of one program
ALIGNED = 16  # tensors with a multiple of this many numbers per model allow vector loads


@triton.jit
def squares_kernel(table, gradients, partial, ALIGN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum the squares of each block of the gradients."""
    block = tl.program_id(0)
    tensor = tl.load(table + 4 * block)
    base = tl.multiple_of(tl.load(table + 4 * block + 2), ALIGN)
    count = tl.multiple_of(tl.load(table + 4 * block + 3), ALIGN)
    offset = tl.arange(0, BLOCK)
    gradient = tl.multiple_of(tl.load(gradients + tensor).to(tl.pointer_type(tl.float32)), ALIGN)
    value = tl.load(gradient + base + offset, mask=offset < count, other=0.0)
    tl.store(partial + block, tl.sum(value * value))


@triton.jit
def update_kernel(  # type: ignore[no-untyped-def]
    table, states, gradients, scale, rates, new_1, old_2, new_2, eps, ALIGN: tl.constexpr, BLOCK: tl.constexpr
):
    """Update each block: new_1 = 1 - β₁, old_2 = β₂, new_2 = 1 - β₂, computed in double precision."""
    block = tl.program_id(0)
    tensor = tl.load(table + 4 * block)
    model = tl.load(table + 4 * block + 1)
    base = tl.multiple_of(tl.load(table + 4 * block + 2), ALIGN)
    count = tl.multiple_of(tl.load(table + 4 * block + 3), ALIGN)
    offset = tl.arange(0, BLOCK)
    inside = offset < count
    place = base + offset
    parameters = tl.multiple_of(tl.load(states + 3 * tensor).to(tl.pointer_type(tl.float32)), ALIGN) + place
    firsts = tl.multiple_of(tl.load(states + 3 * tensor + 1).to(tl.pointer_type(tl.float32)), ALIGN) + place
    seconds = tl.multiple_of(tl.load(states + 3 * tensor + 2).to(tl.pointer_type(tl.float32)), ALIGN) + place
    gradient = tl.multiple_of(tl.load(gradients + tensor).to(tl.pointer_type(tl.float32)), ALIGN) + place
    slope = tl.load(gradient, mask=inside) * tl.load(scale + model)
    first = tl.load(firsts, mask=inside)
    second = tl.load(seconds, mask=inside)
    parameter = tl.load(parameters, mask=inside)
    first += new_1 * (slope - first)
    second = old_2 * second + new_2 * slope * slope
    size = tl.load(rates + 2 * model)
    correction = tl.load(rates + 2 * model + 1)
    parameter -= size * first / (tl.sqrt(second) * correction + eps)
    tl.store(firsts, first, mask=inside)
    tl.store(seconds, second, mask=inside)
    tl.store(parameters, parameter, mask=inside)


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Blocks of some models, in order of models.

    tables: alignment -> (blocks, 4) with tensor, model, start and count; states (tensors, 3): addresses of
    parameters, first and second moments.
    """

    tables: dict[int, Tensor]
    states: Tensor
    models: int

    @classmethod
    def from_states(cls, models: slice, states: list[tuple[Tensor, Tensor, Tensor]]) -> BlockTable:
        """Tabulate the parameters, first and second moments of some models."""
        device, count = states[0][0].device, models.stop - models.start
        sizes = [state[0][0].numel() for state in states]
        blocks: dict[int, list[tuple[int, int, int, int]]] = {}
        for model in range(count):
            for tensor, size in enumerate(sizes):
                alignment = 1 if size % ALIGNED else ALIGNED
                blocks.setdefault(alignment, []).extend(
                    (tensor, model, model * size + start, min(BLOCK, size - start))
                    for start in range(0, size, BLOCK)
                )
        addresses = [[each[models].data_ptr() for each in state] for state in states]
        tables = {alignment: torch.tensor(each, device=device) for alignment, each in blocks.items()}
        return cls(tables, torch.tensor(addresses, device=device), count)

    def norms(self, gradients: Tensor) -> Tensor:
        """Compute the global norm (K,) of each model's gradients, given their addresses (tensors,)."""
        squares = torch.zeros(self.models, device=gradients.device)
        for alignment, table in self.tables.items():
            partial = torch.empty(len(table), device=gradients.device)
            squares_kernel[(len(table),)](table, gradients, partial, alignment, BLOCK, num_warps=WARPS)
            squares = squares + partial.view(self.models, -1).sum(dim=1)
        return squares.sqrt()

    def update(self, gradients: Tensor, scale: Tensor, rates: Tensor) -> None:
        """Update all models: addresses of gradients (tensors,), scale (K,), rates (K, 2)."""
        weights = (1 - FIRST_DECAY, SECOND_DECAY, 1 - SECOND_DECAY, EPS)
        for alignment, table in self.tables.items():
            update_kernel[(len(table),)](
                table, self.states, gradients, scale, rates, *weights, alignment, BLOCK, num_warps=WARPS
            )


class FusedAdamW(AdamW):
    """AdamW in two kernels; parameters and moments have the memory layout of their gradients."""

    def __init__(self, parameters: Tensors, clip: float) -> None:
        super().__init__(parameters, clip)
        self.tables: dict[tuple[int, int], BlockTable] = {}
        self.spare: dict[tuple[int, int], Tensor] = {}
        self.captures: list[tuple[Tensor, list[int]]] = []

    def finish_capture(self) -> None:
        """Fill in the addresses of gradients, which a running capture forbids."""
        for table, addresses in self.captures:
            table.copy_(torch.tensor(addresses))

    def step(self, models: slice, gradients: Tensors, rates: Tensor) -> None:
        """Update some models: gradients (K, ...) by name, rates (K, 2) from `schedule`."""
        ordered = [_match_layout(gradient, self.parameters[name]) for name, gradient in gradients.items()]
        table, addresses = self._table(models, gradients), self._addresses(models, ordered)
        scale = (self.clip / (table.norms(addresses) + CLIP_EPS)).clamp(max=1.0)
        table.update(addresses, scale, rates.contiguous())

    def _addresses(self, models: slice, gradients: list[Tensor]) -> Tensor:
        """Return a table of the gradients' addresses, (tensors,)."""
        at, addresses = (models.start, models.stop), [gradient.data_ptr() for gradient in gradients]
        if torch.cuda.is_current_stream_capturing():
            # Reuse a table: memory allocated during a capture is shared with its other tensors.
            table = self.spare.pop(at)
            self.captures.append((table, addresses))
            return table
        self.spare[at] = torch.tensor(addresses, device=gradients[0].device)
        return self.spare[at]

    def _table(self, models: slice, names: Iterable[str]) -> BlockTable:
        at = (models.start, models.stop)
        if at not in self.tables:
            states = [(self.parameters[name], self.first[name], self.second[name]) for name in names]
            self.tables[at] = BlockTable.from_states(models, states)
        return self.tables[at]


def _match_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return the gradient in the memory layout of its parameter."""
    same_model_stride = len(gradient) == 1 or gradient.stride(0) == parameter.stride(0)
    same_layout = same_model_stride and gradient.stride()[1:] == parameter.stride()[1:]
    if same_layout and gradient.dtype == parameter.dtype and gradient.data_ptr() % ALIGNED == 0:
        return gradient
    ordered = torch.empty_strided(
        gradient.shape, parameter.stride(), dtype=parameter.dtype, device=gradient.device
    )
    return ordered.copy_(gradient)
