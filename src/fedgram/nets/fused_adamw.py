"""Clipping and AdamW of all models in two Triton kernels.

Tensors are cut into blocks. A table holds tensor, model, start, length and unit of each block; another holds
the addresses of the gradients that autograd allocated. A parameter with a copy in half precision has a
gradient of the same dtype. Units multiply gradients: 1 for a model's last layers, `unscale` for its backbone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedgram.nets.optimizer import CLIP_EPS, EPS, FIRST_DECAY, SECOND_DECAY, AdamW
from fedgram.nets.stack import BACKBONE_PREFIX, Tensors

BLOCK, WARPS = 2048, 4  # numbers and warps of one program
ALIGNED = 16  # tensors with a multiple of this many numbers per model allow vector loads
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def squares_kernel(  # type: ignore[no-untyped-def]
    table, gradients, units, partial, ALIGN: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr
):
    """Sum the squares of each block of the gradients; DTYPE is theirs."""
    block = tl.program_id(0)
    tensor = tl.load(table + 5 * block)
    base = tl.multiple_of(tl.load(table + 5 * block + 2), ALIGN)
    count = tl.multiple_of(tl.load(table + 5 * block + 3), ALIGN)
    unit = tl.load(units + tl.load(table + 5 * block + 4))
    offset = tl.arange(0, BLOCK)
    gradient = tl.multiple_of(tl.load(gradients + tensor).to(tl.pointer_type(DTYPE)), ALIGN)
    value = unit * tl.load(gradient + base + offset, mask=offset < count, other=0.0).to(tl.float32)
    tl.store(partial + block, tl.sum(value * value))


@triton.jit
def update_kernel(  # type: ignore[no-untyped-def]
    table, states, gradients, units, scale, rates, new_1, old_2, new_2, eps,
    ALIGN: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Update each block: new_1 = 1 - β₁, old_2 = β₂, new_2 = 1 - β₂, computed in double precision."""
    block = tl.program_id(0)
    tensor = tl.load(table + 5 * block)
    model = tl.load(table + 5 * block + 1)
    base = tl.multiple_of(tl.load(table + 5 * block + 2), ALIGN)
    count = tl.multiple_of(tl.load(table + 5 * block + 3), ALIGN)
    unit = tl.load(units + tl.load(table + 5 * block + 4))
    clipped = tl.load(scale + model)
    offset = tl.arange(0, BLOCK)
    inside = (offset < count) & (clipped != 0.0)
    place = base + offset
    parameters = tl.multiple_of(tl.load(states + 4 * tensor).to(tl.pointer_type(tl.float32)), ALIGN) + place
    firsts = tl.multiple_of(tl.load(states + 4 * tensor + 1).to(tl.pointer_type(tl.float32)), ALIGN) + place
    seconds = tl.multiple_of(tl.load(states + 4 * tensor + 2).to(tl.pointer_type(tl.float32)), ALIGN) + place
    gradient = tl.multiple_of(tl.load(gradients + tensor).to(tl.pointer_type(DTYPE)), ALIGN) + place
    slope = tl.load(gradient, mask=inside).to(tl.float32) * (unit * clipped)
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
    if tl.float32 != DTYPE:
        copies = tl.multiple_of(tl.load(states + 4 * tensor + 3).to(tl.pointer_type(DTYPE)), ALIGN) + place
        tl.store(copies, parameter.to(DTYPE), mask=inside)


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Blocks of some models, in order of models.

    tables: alignment and dtype of gradients -> (blocks, 5) with tensor, model, start, count and unit; states
    (tensors, 4): addresses of parameters, first and second moments, and copies.
    """

    tables: dict[tuple[int, torch.dtype], Tensor]
    states: Tensor
    models: int

    @classmethod
    def from_states(cls, models: slice, states: dict[str, list[Tensor]]) -> BlockTable:
        """Tabulate parameters of some models, both moments, and copies, or parameters again, by name."""
        count = models.stop - models.start
        blocks: dict[tuple[int, torch.dtype], list[tuple[int, ...]]] = {}
        for model in range(count):
            for tensor, (name, state) in enumerate(states.items()):
                size, unit = state[0][0].numel(), model + count * name.startswith(BACKBONE_PREFIX)
                alignment = 1 if size % ALIGNED else ALIGNED
                blocks.setdefault((alignment, state[3].dtype), []).extend(
                    (tensor, model, model * size + start, min(BLOCK, size - start), unit)
                    for start in range(0, size, BLOCK)
                )
        addresses = [[each[models].data_ptr() for each in state] for state in states.values()]
        device = next(iter(states.values()))[0].device
        tables = {kind: torch.tensor(each, device=device) for kind, each in blocks.items()}
        return cls(tables, torch.tensor(addresses, device=device), count)

    def norms(self, gradients: Tensor, units: Tensor) -> Tensor:
        """Compute the global norm (K,) of each model's gradients: addresses (tensors,), units (2, K)."""
        squares = torch.zeros(self.models, device=gradients.device)
        for (alignment, dtype), table in self.tables.items():
            partial = torch.empty(len(table), device=gradients.device)
            squares_kernel[(len(table),)](
                table, gradients, units, partial, alignment, BLOCK, DTYPES[dtype], num_warps=WARPS
            )
            squares = squares + partial.view(self.models, -1).sum(dim=1)
        return squares.sqrt()

    def update(self, gradients: Tensor, units: Tensor, scale: Tensor, rates: Tensor) -> None:
        """Update all models: addresses of gradients (tensors,), units (2, K), scale (K,), rates (K, 2)."""
        weights = (1 - FIRST_DECAY, SECOND_DECAY, 1 - SECOND_DECAY, EPS)
        for (alignment, dtype), table in self.tables.items():
            update_kernel[(len(table),)](
                table, self.states, gradients, units, scale, rates, *weights, alignment, BLOCK,
                DTYPES[dtype], num_warps=WARPS,
            )  # fmt: skip


class FusedAdamW(AdamW):
    """AdamW in two kernels; parameters and moments have the memory layout of their gradients."""

    def __init__(self, parameters: Tensors, clip: float, copies: Tensors | None = None) -> None:
        super().__init__(parameters, clip, copies)
        self.tables: dict[tuple[int, int], BlockTable] = {}
        self.spare: dict[tuple[int, int], Tensor] = {}
        self.captures: list[tuple[Tensor, list[int]]] = []

    def finish_capture(self) -> None:
        """Fill in the addresses of gradients, which a running capture forbids."""
        for table, addresses in self.captures:
            table.copy_(torch.tensor(addresses))

    def step(
        self, models: slice, gradients: Tensors, rates: Tensor, unscale: Tensor | None = None
    ) -> Tensor | None:
        """Update some models, as `AdamW.step`."""
        ordered = [
            _match_layout(gradient, self.copies.get(name, self.parameters[name]))
            for name, gradient in gradients.items()
        ]
        table, addresses = self._table(models, gradients), self._addresses(models, ordered)
        ones = torch.ones(len(rates), device=rates.device)
        units = torch.stack([ones, ones if unscale is None else unscale])
        norms = table.norms(addresses, units)
        finite = norms.isfinite()
        # Models with scale 0 stay as they are, in half precision only.
        scale = (self.clip / (norms + CLIP_EPS)).clamp(max=1.0)
        scale = scale.where(finite, torch.nan if unscale is None else 0.0)
        table.update(addresses, units, scale, rates.contiguous())
        return None if unscale is None else finite

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
            states = {
                name: [value, self.first[name], self.second[name], self.copies.get(name, value)]
                for name, value in ((name, self.parameters[name]) for name in names)
            }
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
