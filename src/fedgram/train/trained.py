"""The networks that a run ended with, on new rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgram.errors import InputError
from fedgram.nets.model import Backbone, Model, draw, prepared
from fedgram.psd import Array
from fedgram.runs import StoredRun


def predictions(
    run: StoredRun, inputs: Mapping[str, Any], backbone: Backbone | None = None
) -> dict[str, Array]:
    """Targets (N, C) that the clients' last networks predict for their inputs (N, ...), by client name.

    backbone is the one that the run was trained with, if it is not one of ours by name.
    """
    clients, arrays = run.setup.data.clients, run.model()
    for client in inputs:
        if client not in clients:
            raise InputError(
                f"The run has no client '{client}'; it has {', '.join(clients)}.",
                client=client,
                field="inputs",
            )
    places = {client: 0 if run.setup.procedure.centralized else m for m, client in enumerate(clients)}
    return {
        client: _predicted(
            run, {name: value[places[client]] for name, value in arrays.items()}, rows, backbone
        )
        for client, rows in inputs.items()
    }


def _predicted(run: StoredRun, arrays: Mapping[str, Array], rows: Any, backbone: Backbone | None) -> Array:
    """What a network with these parameters and buffers predicts for rows (N, ...) -> (N, C)."""
    state = {name: torch.from_numpy(value) for name, value in arrays.items()}
    inputs = prepared(torch.tensor(np.asarray(rows)), state["head.weight"].dtype)
    model = _network(run, state, inputs, backbone)
    with torch.no_grad():
        _, predicted = model.eval()(inputs)
    return predicted.double().numpy()


def _network(run: StoredRun, state: Mapping[str, Tensor], inputs: Tensor, backbone: Backbone | None) -> Model:
    setup = run.setup
    model = draw(
        setup.backbone if backbone is None else backbone, inputs, setup.settings.features,
        len(setup.data.targets), setup.seed, None,
    )  # fmt: skip
    try:
        model.to(inputs.dtype).load_state_dict(state)
    except RuntimeError:
        raise InputError(
            f"The networks of '{run.folder}' are not of this backbone for rows of shape "
            f"{tuple(inputs.shape[1:])}; give the inputs and the backbone that it was trained with.",
            field="backbone",
        ) from None
    return model
