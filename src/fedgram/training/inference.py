"""The networks that a run ended with, on new rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError, check_type
from fedgram._util.files import write_bytes
from fedgram._util.frames import align_columns
from fedgram._util.text import quote_list
from fedgram.data.tables.read_rows import Reading, read_inputs
from fedgram.data.validation import check_finite, check_kind, named, numbers_of, plain
from fedgram.nets.backbones import BACKBONES
from fedgram.nets.model import Backbone, Model, draw, fingerprint, to_model_input
from fedgram.nets.stack import ROWS_AT_ONCE
from fedgram.runs import Runs, StoredRun
from fedgram.runs.manifest import NOT_RECORDED


def predict_rows(
    run: StoredRun, inputs: Mapping[str, Any], backbone: Backbone | None = None
) -> dict[str, Array]:
    """Targets (N, C) that the clients' last networks predict for their inputs (N, ...), by client name.

    Columns of data frames are taken by the names that the run was trained with, if it knows them. backbone is
    the one that the run was trained with, if it is not one of ours by name. The network of a centralized run
    serves clients of any name.
    """
    check_type(inputs, Mapping, "{'a': rows, 'b': rows} names the client of each")
    arrays, shift, provenance = run.model(), _shift(run), run.setup.data.provenance
    given, _ = align_columns(named(inputs), provenance.get("inputs", ()), "inputs")
    found = {}
    for client, rows in given.items():
        place = _place(run, client)
        own = {name: np.asarray(value[place]) for name, value in arrays.items()}  # counts are no arrays
        values = plain(numbers_of(rows, client, "inputs"))
        check_finite(values, client, "inputs")
        check_kind(values, provenance.get("input_type", str(values.dtype)), "the run was trained on", client)
        found[client] = _predicted(run, own, values, backbone) + shift[place]
    return found


def _place(run: StoredRun, client: str) -> int:
    """Which of the run's networks is a client's."""
    clients = run.setup.data.clients
    if run.setup.procedure.centralized:
        return 0
    if client not in clients:
        raise InputError(
            f"The run has no client '{client}'; it has {quote_list(clients)}.", client=client, field="inputs"
        )
    return clients.index(client)


def _shift(run: StoredRun) -> Array:
    """What training subtracted from each client's targets, (M, C)."""
    mean = run.moments.mean
    return mean if run.setup.procedure.centered else np.zeros_like(mean)


def _predicted(run: StoredRun, arrays: Mapping[str, Array], rows: Array, backbone: Backbone | None) -> Array:
    """What a network with these parameters and buffers predicts for rows (N, ...) -> (N, C)."""
    state = {name: torch.from_numpy(value) for name, value in arrays.items()}
    inputs = to_model_input(torch.tensor(rows), state["head.weight"].dtype)
    model = _network(run, state, inputs[:2], backbone).eval()
    with torch.no_grad():
        predict_table = [model(some)[1] for some in torch.split(inputs, ROWS_AT_ONCE)]
    return torch.cat(predict_table).double().numpy()


def _network(run: StoredRun, state: Mapping[str, Tensor], inputs: Tensor, backbone: Backbone | None) -> Model:
    setup, named = run.setup, _named(run) if backbone is None else backbone
    few = inputs.float()  # as in training: lazy layers draw numbers of the type that they see
    model = draw(named, few, setup.settings.features, len(setup.data.targets), 0, None)
    same = _is_the_same(run, model, inputs, named)
    if not (same and _filled(model.to(inputs.dtype), state)):
        raise InputError(
            f"The networks of '{run.folder}' are not of this backbone for rows of shape "
            f"{tuple(inputs.shape[1:])}; give the inputs and the backbone that it was trained with (a module "
            "is taken as it is, whatever its weights).",
            field="backbone",
        )
    return model


def _filled(model: Model, state: Mapping[str, Tensor]) -> bool:
    """Put numbers into all tensors of a model, also those that it does not save; False if it has others."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        return False
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(state[name])
    return True


def _named(run: StoredRun) -> str:
    """The run's backbone, if it is one of ours."""
    name = run.setup.backbone
    if name not in BACKBONES:
        raise InputError(
            f"The run in '{run.folder}' was trained with a backbone of your own, '{name}'; in Python "
            "fedgram.training.predictions takes it as backbone=.",
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


@dataclass(frozen=True, eq=False)
class PredictedTable:
    """The client of every row (N,), and what was predicted for it (N, C), in the order of the table."""

    clients: list[str]
    targets: tuple[str, ...]
    values: Array

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"targets": list(self.targets), "clients": self.clients, "predictions": self.values.tolist()}

    def csv(self) -> str:
        """A line for every row, after one of names."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["client", *self.targets])
        lines.writerows(
            [client, *row] for client, row in zip(self.clients, self.values.tolist(), strict=True)
        )
        return text.getvalue()

    def save(self, output: Path) -> None:
        """Write the CSV file."""
        write_bytes(output, self.csv().encode())


def predict_table(folder: Path, data: str, client: str | None, site: str | None) -> PredictedTable:
    """What the networks of a run predict for the rows of a table, each with that of its client."""
    from fedgram.training import predict_rows

    run = _one(folder)
    run.require_model()
    if run.setup.procedure.centralized and client is None:
        site = site or "all"  # one network serves clients of any name
    if (client is None) == (site is None):
        raise InputError(
            "Say either --client, the column that names each row's client, or --site, and not both.",
            field="client",
        )
    clients, inputs = read_inputs(data, Reading(client, _inputs(run), [], site=site or ""))
    owners = np.array(clients, dtype=object)
    values = np.empty((len(clients), len(run.setup.data.targets)))
    rows = {name: inputs[owners == name].astype(np.float32) for name in dict.fromkeys(clients)}
    for name, found in predict_rows(run, rows).items():
        values[owners == name] = found
    return PredictedTable(clients, run.setup.data.targets, values)


def _one(folder: Path) -> StoredRun:
    """The run in a folder, which must be one."""
    found = Runs(folder).require()
    if len(found) > 1:
        raise InputError(
            f"There are {len(found)} runs in '{folder}'; name the folder of one, like '{found[0].folder}'.",
            field="folder",
        )
    return found[0]


def _inputs(run: StoredRun) -> list[str]:
    """The columns that a run was trained on."""
    inputs = run.setup.data.provenance.get("inputs")
    if not inputs:
        raise InputError(
            f"The run was trained on '{run.setup.data.name}', whose inputs are no columns of a table; in "
            "Python fedgram.training.predictions takes arrays.",
            field="folder",
        )
    return list(inputs)
