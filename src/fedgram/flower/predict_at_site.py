"""Predict with the network that a site keeps in its private folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram.flower.scaling import PREFIX, Scaling
from fedgram.nets.model import Backbone, Model, draw, to_model_input
from fedgram.runs.tensor_files import read_arrays

LOCAL, SHARE = "local.", "local_share"
"""Prefix of the network trained alone, and its share in a blended run."""


def predict_at_site(path: str | Path, inputs: Any, backbone: Backbone) -> Array:
    """Predict targets with a site's `model.safetensors`.

    Parameters
    ----------
    path : path
        The file in the site's private folder.
    inputs : array (N, ...)
        Rows with the columns that the site was trained on, in their own units.
    backbone : str, module, or function
        The backbone of the federation.

    Returns
    -------
    array (N, C)
        In the targets' own units. With a blended run, the mixture with the network that the site trained
        alone.

    Raises
    ------
    InputError
        If the file is damaged or missing, or belongs to another backbone.

    Examples
    --------
    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from fedgram.flower import predict_at_site
    >>> from fedgram.nets.model import draw
    >>> from fedgram.runs.tensor_files import write_arrays
    >>> model = draw("resmlp-small", torch.zeros(2, 3), 8, 2, 0, None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.safetensors")
    ...     write_arrays(path, {name: each.numpy() for name, each in model.state_dict().items()})
    ...     predicted = predict_at_site(path, torch.ones(5, 3), "resmlp-small")
    >>> predicted.shape
    (5, 2)
    """
    arrays = read_arrays(Path(path))
    scaling = Scaling.from_arrays(arrays)
    if scaling is not None:
        inputs = scaling.encode_inputs(np.asarray(inputs))
        arrays = {name: value for name, value in arrays.items() if not name.startswith(PREFIX)}
    share = float(arrays.pop(SHARE, np.zeros(())))
    own = {name: value for name, value in arrays.items() if not name.startswith(LOCAL)}
    local = {name.removeprefix(LOCAL): value for name, value in arrays.items() if name.startswith(LOCAL)}
    shared = (1 - share) * _predict(own, inputs, backbone)
    predicted = shared + share * _predict(local, inputs, backbone) if local else shared
    return predicted if scaling is None else scaling.decode_targets(predicted)


def _predict(arrays: Mapping[str, Array], inputs: Any, backbone: Backbone) -> Array:
    head = torch.from_numpy(arrays["head.weight"])
    rows = to_model_input(torch.as_tensor(inputs), head.dtype)
    targets, features = head.shape
    model = draw(backbone, rows[:2].float(), features, targets, 0, None).to(head.dtype)
    _load(model, arrays)
    with torch.no_grad():
        predicted = model.eval()(rows)[1]
    return np.asarray(predicted.double().numpy())


def _load(model: Model, arrays: Mapping[str, Array]) -> None:
    """Load all tensors, also those that state_dict omits."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    if own.keys() != arrays.keys() or any(own[name].shape != arrays[name].shape for name in own):
        raise InputError(
            "The network of this site does not match the backbone and inputs. Pass those of its federation.",
            field="backbone",
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(torch.from_numpy(arrays[name]))
