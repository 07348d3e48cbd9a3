"""Predict new rows with the networks of a run.

`predict_rows` takes arrays by client; `predict_table` takes a table with a client column.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError, check_type
from fedgram._util.files import write_bytes
from fedgram._util.frames import align_columns
from fedgram._util.text import quote_list
from fedgram.data.encoding import Encoding
from fedgram.data.site_summary import is_number
from fedgram.data.tables.read_rows import TableSpec, read_inputs
from fedgram.data.tables.read_site_tables import read_columns
from fedgram.data.tables.read_text import read_as_text
from fedgram.data.validation import check_finite, check_image_dtype, to_native_array, to_numeric_array
from fedgram.nets.backbones import BACKBONES
from fedgram.nets.model import Backbone, Model, draw, fingerprint, to_model_input
from fedgram.nets.stored_model import check_predictions, fits, predict_stored, select_model
from fedgram.runs import Runs, StoredRun
from fedgram.runs.held_out import HeldOutErrors
from fedgram.runs.manifest import NOT_RECORDED
from fedgram.theory.blend import UNLIMITED, mix
from fedgram.theory.validation import key_by_client


def predict_rows(
    run: StoredRun, inputs: Mapping[str, Any], backbone: Backbone | None = None
) -> dict[str, Array]:
    """Predict targets with the clients' networks.

    Parameters
    ----------
    run : StoredRun
        A complete run with saved networks.
    inputs : mapping from client name to array (N, ...) or data frame
        Columns of data frames are matched by name. A centralized run accepts any client name, and a
        full-model run predicts with its shared network for clients that did not take part. A run with
        encoded columns takes the encoded ones; `fedgram runs predict` encodes tables.
    backbone : module or function, optional
        The backbone that the run was trained with; not needed for backbones with a name.

    Returns
    -------
    dict from client name to array (N, C)

    Raises
    ------
    InputError
        If the run has no networks, a client or column is unknown, or the backbone is another one.

    Examples
    --------
    >>> import tempfile, numpy as np, fedgram
    >>> x = np.random.default_rng(0).standard_normal((2, 20, 3))
    >>> problem = fedgram.Problem.from_arrays({"a": x[0], "b": x[1]}, {"a": x[0, :, :2], "b": x[1, :, 1:]})
    >>> config = fedgram.TrainConfig(rounds=1, epochs=1, features=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (run,) = fedgram.train(problem, "resmlp-small", ["private"], [0], config, folder=folder)
    ...     predicted = fedgram.predict_rows(run, {"b": np.ones((5, 3))})
    >>> predicted["b"].shape
    (5, 2)
    """
    check_type(run, StoredRun, "predict_rows()", "Take one from Runs(folder)")
    check_type(inputs, Mapping, "predict_rows()", "Pass {'a': rows, 'b': rows}, by client name")
    arrays, provenance, mean = run.model(), run.setup.data.provenance, run.moments.mean
    encoding = Encoding.from_document(provenance["encoding"]) if "encoding" in provenance else None
    columns = encoding.input_names if encoding else provenance.get("inputs", ())
    by_client, _ = align_columns(key_by_client(inputs, "inputs"), columns, "inputs")
    dtype = torch.tensor(arrays["head.weight"][:0]).dtype
    models: dict[torch.Size, Model] = {}
    predicted = {}
    numbers = {client: _index_of(run, client) for client in by_client}
    if strangers := [client for client, m in numbers.items() if m is None]:
        warnings.warn(_describe_strangers(strangers, numbers, run.setup.data.clients), stacklevel=2)
    for client, rows in by_client.items():
        m = numbers[client]
        values = to_native_array(to_numeric_array(rows, client, "inputs"))
        check_finite(values, client, "inputs")
        input_type = provenance.get("input_type", str(values.dtype))
        check_image_dtype(values, input_type, "the run was trained on", client)
        shift = mean[m] if run.setup.procedure.centered and m is not None else 0.0
        networks = _networks_of(arrays, m, run.setup.data.train_rows)
        rows = to_model_input(torch.tensor(values), dtype)
        if (shape := rows.shape[1:]) not in models:
            models[shape] = _build_model(run, networks.joined, rows[:2], backbone)
        standardized = predict_stored(models[shape], networks.joined, rows) + shift
        if networks.share:  # the network that a client trained alone predicts targets that are not centered
            own = predict_stored(models[shape], networks.own, rows)
            standardized = mix(own, standardized, networks.share, networks.limits)
        predicted[client] = encoding.decode_targets(standardized) if encoding else standardized
        check_predictions(predicted[client], client)
    return predicted


class _Networks(NamedTuple):
    """The joined network of a client; in a blended run also its own, with its share and limits (2, C)."""

    joined: Mapping[str, Array]
    own: Mapping[str, Array] = MappingProxyType({})
    share: float = 0.0
    limits: Array = UNLIMITED


def _networks_of(arrays: Mapping[str, Array], m: int | None, rows: Sequence[int]) -> _Networks:
    """Return the networks of client m; None is a client that did not take part."""
    parts: dict[str, dict[str, Array]] = {"": {}, "shared.": {}, "local.": {}}
    for name, value in arrays.items():
        prefix = next((each for each in ("shared.", "local.") if name.startswith(each)), "")
        parts[prefix][name.removeprefix(prefix)] = value
    shares, limits = (parts[""].pop(f"local_{name}", None) for name in ("share", "limits"))
    if m is None:
        return _Networks(parts["shared."] or average_networks(parts[""], rows))
    joined = select_model(parts[""], m)
    if shares is None:
        return _Networks(joined)
    own_limits = UNLIMITED if limits is None else limits[m]
    return _Networks(joined, select_model(parts["local."], m), float(shares[m]), own_limits)


def average_networks(arrays: Mapping[str, Array], client_weights: Any) -> dict[str, Array]:
    """Average arrays (M, ...) of the clients' networks, which differ in running statistics only."""
    return {
        name: np.asarray(np.average(each, axis=0, weights=client_weights), each.dtype)
        for name, each in arrays.items()
    }


def _index_of(run: StoredRun, client: str) -> int | None:
    """Return the index of a client's network; None for the shared network."""
    if run.setup.procedure.centralized:
        return 0
    clients = run.setup.data.clients
    names = [name.strip() for name in clients]  # tables are read without blanks around names
    if client.strip() in names:
        return names.index(client.strip())
    if run.setup.procedure.has_shared_network:
        return None
    raise InputError(
        f"The run has no client '{client}'. Its clients are {quote_list(clients)}.",
        client=client,
        field="inputs",
    )


def _describe_strangers(strangers: Sequence[str], given: Collection[str], known: Sequence[str]) -> str:
    """Say which of the given clients did not take part in training; if none did, name those that did."""
    if len(strangers) == 1:
        found = f"Client '{strangers[0]}' did not take part in training; the shared network predicts for it."
    else:
        count = f"{len(strangers):,} of {len(given):,}"
        found = (
            f"{count} clients did not take part in training; the shared network predicts for them: "
            f"{quote_list(strangers)}."
        )
    return found if len(strangers) < len(given) else f"{found} Clients of the training: {quote_list(known)}."


def _build_model(
    run: StoredRun, arrays: Mapping[str, Array], inputs: Tensor, backbone: Backbone | None
) -> Model:
    """Build the model of a run for inputs (B, ...) like these; `arrays` are one of its networks."""
    setup, backbone = run.setup, _named_backbone(run) if backbone is None else backbone
    # float32 as in training: lazy layers draw values of the dtype that they receive
    model = draw(backbone, inputs.float(), setup.settings.features, len(setup.data.targets), 0, None)
    if not (_is_backbone_of(run, model, inputs, backbone) and fits(model, arrays)):
        raise InputError(
            f"The networks of '{run.folder}' do not match this backbone for rows of shape "
            f"{tuple(inputs.shape[1:])}. Pass the inputs and the backbone of its training; a module may have "
            "any weights.",
            field="backbone",
        )
    return model.to(inputs.dtype)


def _named_backbone(run: StoredRun) -> str:
    name = run.setup.backbone
    if name not in BACKBONES:
        raise InputError(
            f"The run in '{run.folder}' was trained with your own backbone '{name}'. Pass it in Python: "
            "fedgram.predict_rows(run, inputs, backbone=...).",
            field="backbone",
        )
    return name


def _is_backbone_of(run: StoredRun, model: Model, inputs: Tensor, backbone: Backbone) -> bool:
    """Whether a function draws the run's network; names are trusted, and modules may have new weights."""
    if isinstance(backbone, (str, nn.Module)) or run.setup.network == NOT_RECORDED:
        return True
    return run.setup.network == fingerprint(model, torch.ones(2, *inputs.shape[1:]))


class TargetError(NamedTuple):
    """Error of predictions on the rows that have the target; r2 as in `HeldOutErrors`."""

    target: str
    rows: int
    rmse: float
    r2: float


@dataclass(frozen=True, eq=False)
class PredictedTable:
    """Predictions (N, C) for the rows of a table in order, and the client (N,) of each.

    names and rows are the columns of the table as they are written, and client columns that folders name.
    """

    clients: list[str]
    targets: tuple[str, ...]
    values: Array
    names: list[str]
    rows: list[tuple[str, ...]]

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram runs predict --json`."""
        return {"targets": list(self.targets), "clients": self.clients, "predictions": self.values.tolist()}

    def csv(self) -> str:
        """Format the table with its predictions as CSV; a column that the table has is not replaced."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.names, *map(self._name_predictions, self.targets)])
        writer.writerows([*row, *values] for row, values in zip(self.rows, self.values.tolist(), strict=True))
        return text.getvalue()

    def _name_predictions(self, target: str) -> str:
        """Return the first of 'y', 'y predicted', 'y predicted 2', ... that is no column of the table."""
        names = chain([target, f"{target} predicted"], (f"{target} predicted {n}" for n in count(2)))
        return next(name for name in names if name not in self.names)

    def errors(self) -> Iterator[TargetError]:
        """Compare predictions with each target that the table has; rows without a number do not count."""
        for c, target in enumerate(self.targets):
            if target not in self.names:
                continue
            texts = [row[self.names.index(target)] for row in self.rows]
            known = [n for n, text in enumerate(texts) if is_number(text)]
            if not known:
                continue
            truth = np.array([[float(texts[n])] for n in known])
            found = HeldOutErrors.from_predictions([self.values[known, c : c + 1]], [truth])
            yield TargetError(target, len(known), found.mse.item() ** 0.5, found.r2.item())

    def save(self, output: Path) -> None:
        """Write the CSV file."""
        write_bytes(output, self.csv().encode())


def predict_table(folder: Path, data: str, client: str | None, site: str | None) -> PredictedTable:
    """Predict the rows of a table, each with the network of its client."""
    run = _load_single_run(folder)
    run.require_model()
    if run.setup.procedure.centralized and client is None:
        site = site or "all"  # its network accepts any client name
    if (client is None) == (site is None):
        raise InputError(
            "Pass either --client, the column with each row's client, or --site"
            + ("." if client is None else ", not both."),
            field="client",
        )
    clients, inputs = _read_inputs(run, data, TableSpec(client, _input_columns(run), [], site=site or ""))
    owners = np.array(clients, dtype=object)
    values = np.empty((len(clients), len(run.setup.data.targets)))
    rows = {name: inputs[owners == name].astype(np.float32) for name in dict.fromkeys(clients)}
    for name, predicted in predict_rows(run, rows).items():
        values[owners == name] = predicted
    names, texts = read_as_text(data)
    if client is not None and client not in names:  # folders name the clients
        names = [client, *names]
        texts = [(name, *row) for name, row in zip(clients, texts, strict=True)]
    return PredictedTable(clients, run.setup.data.targets, values, names, texts)


def _read_inputs(run: StoredRun, data: str, spec: TableSpec) -> tuple[list[str], Array]:
    """Read the client of every row and the inputs (N, D), encoded as in training."""
    if "encoding" not in run.setup.data.provenance:
        return read_inputs(data, spec)
    encoding = Encoding.from_document(run.setup.data.provenance["encoding"])
    clients, columns = read_columns(data, spec, encoding.kinds)
    return clients, encoding.encode_new_inputs(columns)


def _load_single_run(folder: Path) -> StoredRun:
    runs = Runs(folder).require()
    if len(runs) > 1:
        raise InputError(
            f"'{folder}' has {len(runs)} runs. Name the folder of one, such as '{runs[0].folder}'.",
            field="folder",
        )
    return runs[0]


def _input_columns(run: StoredRun) -> list[str]:
    columns = run.setup.data.provenance.get("inputs")
    if not columns:
        raise InputError(
            f"The run was trained on '{run.setup.data.name}', which has no input columns. Pass arrays in "
            "Python: fedgram.predict_rows(run, inputs).",
            field="folder",
        )
    return list(columns)
