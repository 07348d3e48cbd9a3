"""The networks that a run ended with, on new rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgram.errors import InputError
from fedgram.nets.backbones import BACKBONES
from fedgram.nets.model import Backbone, Model, draw, fingerprint, prepared
from fedgram.psd import Array
from fedgram.runs import StoredRun
from fedgram.runs.manifest import NOT_RECORDED


def predictions(
    run: StoredRun, inputs: Mapping[str, Any], backbone: Backbone | None = None
) -> dict[str, Array]:
    """Targets (N, C) that the clients' last networks predict for their inputs (N, ...), by client name.

    backbone is the one that the run was trained with, if it is not one of ours by name. The network of a
    centralized run serves clients of any name.
    """
    arrays, shift = run.model(), _shift(run)
    found = {}
    for client, rows in inputs.items():
        place = _place(run, client)
        own = {name: value[place] for name, value in arrays.items()}
        found[client] = _predicted(run, own, rows, backbone) + shift[place]
    return found


def _place(run: StoredRun, client: str) -> int:
    """Which of the run's networks is a client's."""
    clients = run.setup.data.clients
    if run.setup.procedure.centralized:
        return 0
    if client not in clients:
        raise InputError(
            f"The run has no client '{client}'; it has {', '.join(clients)}.", client=client, field="inputs"
        )
    return clients.index(client)


def _shift(run: StoredRun) -> Array:
    """What training subtracted from each client's targets, (M, C)."""
    mean = run.moments.mean
    return mean if run.setup.procedure.centered else np.zeros_like(mean)


def _predicted(run: StoredRun, arrays: Mapping[str, Array], rows: Any, backbone: Backbone | None) -> Array:
    """What a network with these parameters and buffers predicts for rows (N, ...) -> (N, C)."""
    state = {name: torch.from_numpy(value) for name, value in arrays.items()}
    inputs = prepared(torch.tensor(np.asarray(rows)), state["head.weight"].dtype)
    model = _network(run, state, inputs, backbone)
    with torch.no_grad():
        _, predicted = model.eval()(inputs)
    return predicted.double().numpy()


def _network(run: StoredRun, state: Mapping[str, Tensor], inputs: Tensor, backbone: Backbone | None) -> Model:
    setup, named = run.setup, _named(run) if backbone is None else backbone
    model = draw(named, inputs, setup.settings.features, len(setup.data.targets), 0, None)
    same = _is_the_same(run, model, inputs, named)
    try:
        model.to(inputs.dtype).load_state_dict(state)
    except RuntimeError:
        same = False
    if not same:
        raise InputError(
            f"The networks of '{run.folder}' are not of this backbone for rows of shape "
            f"{tuple(inputs.shape[1:])}; give the inputs and the backbone that it was trained with (a module "
            "is taken as it is, whatever its weights).",
            field="backbone",
        )
    return model


def _named(run: StoredRun) -> str:
    """The run's backbone, if it is one of ours."""
    name = run.setup.backbone
    if name not in BACKBONES:
        raise InputError(
            f"The run in '{run.folder}' was trained with a backbone of your own, '{name}'; in Python "
            "fedgram.train.predictions takes it as backbone=.",
            field="backbone",
        )
    return name


def _is_the_same(run: StoredRun, model: Model, inputs: Tensor, backbone: Backbone) -> bool:
    """Whether a function draws the network of the run.

    A module may have come by other weights since, and ours are known by name.
    """
    if isinstance(backbone, (str, nn.Module)) or run.setup.network == NOT_RECORDED:
        return True
    return run.setup.network == fingerprint(model.float(), torch.ones(2, *inputs.shape[1:]))
