"""Predict with the network that a site keeps in its private folder."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.frames import column_names
from fedgram._util.text import pluralize, quote_list
from fedgram.data.columns import (
    ColumnKind,
    check_present,
    indicate_levels,
    is_missing,
    level_name,
    parse_levels,
    parse_numbers,
)
from fedgram.data.encoding import describe_clipped_rows, describe_unknown_levels
from fedgram.data.tables.read_rows import TableSpec
from fedgram.data.tables.read_site_tables import read_columns
from fedgram.data.tables.read_text import read_as_text
from fedgram.flower.client_state import BACKBONE, FILL, INPUTS, LEVELS, MODEL, SITE, TARGETS
from fedgram.flower.scaling import PREFIX, Scaling
from fedgram.nets.model import Backbone, Model, draw, to_model_input
from fedgram.nets.stored_model import Arrays, check_predictions, fits, predict_stored
from fedgram.runs.tensor_files import read_arrays, read_metadata
from fedgram.theory.blend import UNLIMITED, mix
from fedgram.training.inference import PredictedTable

Levels = Mapping[str, Sequence[str]]
"""Levels of the inputs that are categories, by name."""
Fill = Mapping[str, float | str]
"""Values of missing inputs, by name."""
LOCAL, SHARE, LIMITS = "local.", "local_share", "local_limits"
"""Prefix of the network trained alone, its share in a blended run, and the limits of its predictions."""
REMEDY = "Restore it from a backup, or train again"
REFILL = "Fill missing values as you did for training, or drop the rows."


def predict_at_site(path: str | Path, inputs: Any, backbone: Backbone | None = None) -> Array:
    """Predict targets with a site's `model.safetensors`.

    Parameters
    ----------
    path : path
        The file in the site's private folder, or a folder that contains it and no other model.
    inputs : array, data frame or dict of columns (N, ...)
        Rows in their own units, with the columns of training. Columns of arrays have the order of training.
        Other columns are chosen by name if the file has the names; otherwise the order counts.
        Levels that no site had in training count as no level. Missing values are filled as in training, if
        the federation had `fill`.
    backbone : str, module, or function, optional
        The backbone of the federation; a named one need not be given.

    Returns
    -------
    array (N, C)
        In the targets' own units. With a blended run, the mixture with the network that the site trained
        alone.

    Raises
    ------
    InputError
        If the file is damaged or missing, or belongs to another backbone; if a column or a value is missing,
        or a value or prediction is not a finite number.

    Warns
    -----
    UserWarning
        If `inputs` is a data frame and the file has no input names, so that nothing checks the order, or if
        rows have unknown levels or inputs that are cut off.

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
    ...     predicted = predict_at_site(folder, torch.ones(5, 3), "resmlp-small")
    >>> predicted.shape
    (5, 2)
    """
    file = _find_file(Path(path))
    arrays = read_arrays(file, REMEDY)
    names = _read_names(file)
    levels = names.get(LEVELS, {})
    rows = _read_rows(inputs, names.get(INPUTS, []), levels, names.get(FILL, {}))
    backbone = backbone or names.get(BACKBONE)
    if backbone is None:
        raise InputError(
            f"'{file}' does not name a backbone. Pass the one of its federation.", field="backbone"
        )
    scaling = Scaling.from_arrays(arrays)
    if scaling is not None:
        encoded = scaling.encode_inputs(rows)  # rejects rows of another width
        if (is_clipped := scaling.find_clipped(rows, _find_levels(names))).any():
            warnings.warn(describe_clipped_rows(is_clipped), stacklevel=2)
        rows = encoded
        arrays = {name: value for name, value in arrays.items() if not name.startswith(PREFIX)}
    share, limits = float(arrays.pop(SHARE, np.zeros(()))), arrays.pop(LIMITS, UNLIMITED)
    own = {name: value for name, value in arrays.items() if not name.startswith(LOCAL)}
    local = {name.removeprefix(LOCAL): value for name, value in arrays.items() if name.startswith(LOCAL)}
    given = to_model_input(torch.as_tensor(rows), torch.tensor(own["head.weight"]).dtype)
    model = _build_model(backbone, given, [own, local] if local else [own])
    predicted = predict_stored(model, own, given)
    if local:
        predicted = mix(predict_stored(model, local, given), predicted, share, limits)
    predicted = predicted if scaling is None else scaling.decode_targets(predicted)
    check_predictions(predicted)
    return predicted


def predict_site_table(path: Path, data: str) -> PredictedTable:
    """Predict the rows of a table with a site's model, for `fedgram runs predict`."""
    file = _find_file(path)
    names = _read_names(file)
    if missing := [key for key in (INPUTS, TARGETS, BACKBONE) if key not in names]:
        raise InputError(
            f"'{file}' has no names of its {missing[0]}. Use fedgram.flower.predict_at_site in Python.",
            field="folder",
        )
    site = names[SITE]
    kinds: dict[str, ColumnKind] = dict.fromkeys(names.get(LEVELS, {}), "category")
    clients, inputs = read_columns(data, TableSpec(None, names[INPUTS], [], site=site), kinds)
    columns, rows = read_as_text(data)
    predicted = predict_at_site(file, inputs)
    return PredictedTable(clients, tuple(names[TARGETS]), predicted, columns, rows)


def _read_names(file: Path) -> dict[str, Any]:
    """Read the names in a model file's metadata."""
    found = read_metadata(file, REMEDY)
    keys = (INPUTS, LEVELS, FILL, TARGETS, BACKBONE, SITE)
    return {key: json.loads(found[key]) for key in keys if key in found}


def _find_levels(names: Mapping[str, Any]) -> list[bool] | bool:
    """Return which columns of the encoded rows indicate levels; none do in a file without names."""
    levels, inputs = names.get(LEVELS, {}), names.get(INPUTS)
    if inputs is None:
        return False
    return [name in levels for name in inputs for _ in levels.get(name, [name])]


def _find_file(path: Path) -> Path:
    """Return the model file at a path: the file itself, or the only one below a folder."""
    files = sorted(path.rglob(MODEL)) if path.is_dir() else [path] if path.is_file() else []
    if path / MODEL in files:
        return path / MODEL
    if len(files) > 1:
        raise InputError(
            f"'{path}' has {len(files)} models. Pass one of them, such as '{files[0]}'.", field="path"
        )
    if not files:
        raise InputError(
            f"No model file at '{path}'. Pass the site's private folder, or the '{MODEL}' in it.",
            field="path",
        )
    return files[0]


def _read_rows(inputs: Any, names: Sequence[str], levels: Levels, fill: Fill) -> Array:
    """Return rows (N, ...) of finite numbers; columns of data frames are ordered as `names`."""
    if labels := tuple(inputs) if isinstance(inputs, Mapping) else column_names(inputs):
        return _read_columns({name: inputs[name] for name in _choose_columns(labels, names)}, levels, fill)
    values = _to_array(inputs)
    if values.ndim == 2 and values.shape[1]:
        given = values.shape[1]
        if names and len(names) != given:
            raise InputError(
                f"The inputs have {pluralize(given, 'column')} instead of {len(names)}: {quote_list(names)}.",
                field="inputs",
            )
        labelled = dict(zip(names or [f"x{d}" for d in range(given)], values.T, strict=True))
        return _read_columns(labelled, levels, fill)
    is_number = np.abs(np.ma.filled(values.astype(np.float64), np.nan)) <= np.finfo(np.float32).max
    if not is_number.all():  # images
        row = np.argwhere(~is_number)[0][0] + 1
        raise InputError(
            f"Row {row} of the inputs has a value that is missing or not finite. {REFILL}", field="inputs"
        )
    return values


def _choose_columns(labels: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the columns of a data frame to predict with: those of training, or all if they are unknown."""
    if missing := [name for name in names if name not in labels]:
        raise InputError(
            f"The inputs have no column {quote_list(missing)}. Pass the columns {quote_list(names)}.",
            field="inputs",
        )
    if not names:
        warnings.warn(
            "The model file has no input names, so the order of columns is not checked. Pass an array with "
            "the columns in the order of training.",
            stacklevel=4,
        )
    return names or labels


def _to_array(inputs: Any) -> Array:
    try:
        values = np.asanyarray(inputs.detach().cpu().double() if isinstance(inputs, Tensor) else inputs)
    except ValueError:  # rows of different lengths
        raise InputError("Rows of the inputs have different lengths. Pass a table.", field="inputs") from None
    if values.dtype.kind == "U" and isinstance(inputs, Sequence):
        values = np.array(inputs, dtype=object)  # as text, NaN would be a level
    if values.ndim != 2 and values.dtype.kind not in "biuf":
        raise InputError(f"The inputs are not numbers: {values.dtype}. Convert them.", field="inputs")
    return values


def _read_columns(columns: Mapping[str, Any], levels: Levels, fill: Fill) -> Array:
    """Return columns of finite numbers as rows (N, columns), a category as one 0/1 column per level."""
    # `Site.from_table` stores levels as they are given, such as 'True'
    levels = {name: [level_name(level) for level in each] for name, each in levels.items()}
    parsed = {
        name: (parse_levels if name in levels else parse_numbers)(columns, name, "") for name in columns
    }
    for name, values in parsed.items():
        if name not in fill:
            check_present(values, name, "", REFILL)
        elif name not in levels:
            parsed[name] = np.where(is_missing(values), fill[name], values)
    unknown = {name: sorted(set(parsed[name].tolist()) - {"", *known}) for name, known in levels.items()}
    if any(unknown.values()):
        listed = (f"{quote_list(found)} of '{name}'" for name, found in unknown.items() if found)
        warnings.warn(describe_unknown_levels(", ".join(listed)), stacklevel=4)
    return np.column_stack(
        [
            indicate_levels(values, levels[name]) if name in levels else values
            for name, values in parsed.items()
        ]
    )


def _build_model(backbone: Backbone, rows: Tensor, networks: Sequence[Arrays]) -> Model:
    """Build the model of a site's networks for model inputs (N, ...) like these rows."""
    targets, features = networks[0]["head.weight"].shape
    model = draw(backbone, rows[:2].float(), features, targets, 0, None)
    if not all(fits(model, arrays) for arrays in networks):
        raise InputError(
            "The network of this site does not match the backbone and inputs. Pass those of its federation.",
            field="backbone",
        )
    return model.to(rows.dtype)
