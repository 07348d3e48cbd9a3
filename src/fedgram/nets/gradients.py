"""Parts of a training step, between which gradients are passed on.

Backbone outputs u, the loss as a function of u, its slope at u, and from that the backbone's gradients. With
fp16 or bf16 backbones compute in half precision, and the slope at u is scaled to fit into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedgram.nets.objective import compute_losses
from fedgram.nets.stack import ModelStack, Tensors
from fedgram.nets.stacked_layers import CONVOLUTIONS

# Half precision: bounds of the largest slope after scaling. fp16 ends at 65,504, which sums over rows and
# pixels must not reach, and loses digits below 6e-5.
LARGEST_SLOPE, SMALLEST_SLOPE = 2.0**-4, 2.0**-12
# Factors of that slope after a step that overflowed, and after any other: 1,024 steps undo an overflow. None
# of these numbers was tuned; overflows were rare (docs/speed.md).
SHRINK, GROW = 2.0**-4, 2.0 ** (1 / 256)


class Parts(NamedTuple):
    """Parts of a step between which gradients are passed on; on a GPU each is compiled."""

    outputs: Callable[..., Tensor]
    losses: Callable[..., Tensor]
    scale: Callable[..., tuple[Tensor, Tensor]]


def differentiate(outputs: Tensor, parameters: Tensors, slope: Tensor) -> Tensors:
    """Return gradients (K, ...) by name for the slope (K, B, D) of the loss at outputs (K, B, D)."""
    if not outputs.requires_grad:
        return {name: torch.zeros_like(value) for name, value in parameters.items()}
    gradients = torch.autograd.grad(
        outputs, list(parameters.values()), slope.to(outputs.dtype), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, gradients, strict=True))


def scale_slopes(slope: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Scale slopes (K, B, D) to absolute values of at most `largest` (K,).

    The second result (K,) undoes the scale. fp16 has no numbers below 6e-8, and slopes fall below it long
    before training converges.
    """
    least = torch.finfo(slope.dtype).tiny / SMALLEST_SLOPE
    unscale = slope.abs().amax(dim=(1, 2)).clamp(min=least) / largest
    return slope / unscale[:, None, None], unscale


def adapt_largest_slope(largest: Tensor, finite: Tensor) -> Tensor:
    """Return the next largest slope (K,): smaller if gradients were not finite."""
    return (largest * torch.where(finite, GROW, SHRINK)).clamp(SMALLEST_SLOPE, LARGEST_SLOPE)


def list_product_weights(stack: ModelStack) -> list[str]:
    """List the weights of linear layers and convolutions of backbones."""
    layers = (nn.Linear, *CONVOLUTIONS)
    weights = {id(each.weight) for each in stack.model.backbone.modules() if isinstance(each, layers)}
    return [
        name
        for name, value in stack.model.named_parameters()
        if id(value) in weights and name in stack.parameters
    ]


EAGER = Parts(ModelStack.map_backbones, compute_losses, scale_slopes)
