"""The head that a federation starts from.

It depends on the seed and its shape only, so the server draws it and trusts no client for it.
"""

from __future__ import annotations

import torch
from torch import nn

from fedgram._util.arrays import Array
from fedgram.flower.config import FederationConfig
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.model import draw


def draw_initial_head(config: FederationConfig, targets: int) -> tuple[Array, Array]:
    """Draw head (C, P) and bias (C,), as every client of `fedgram train` does."""
    settings = config.settings
    model = draw(nn.Identity(), torch.zeros(2, 1), settings.features, targets, config.run.seed, None)
    dtype = storage_dtype(settings.precision)
    head, bias = (each.detach().to(dtype).double().numpy() for each in (model.head.weight, model.head.bias))
    return head, bias
