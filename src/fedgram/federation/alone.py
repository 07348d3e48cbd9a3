"""What sites predict without the others: a network that each trains alone, ridge regression, or its mean.

All sites use the same method, the one with the least error over the test rows of all. So few epochs, a
network that suits few rows badly, or inputs that explain little do not make joining look better than it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgram._util.arrays import Array
from fedgram.federation.client_data import Rows
from fedgram.federation.clients import Clients
from fedgram.federation.site_models import predict_part
from fedgram.nets.stack import Tensors
from fedgram.runs.advice import Alone
from fedgram.theory.site_ridge import fit_site_ridge


def predict_alone(clients: Clients, networks: Tensors, run: int) -> dict[Alone, list[Array]]:
    """Predict the test rows of every site without the other sites, by method.

    `networks` (M, ...) by name are the final models of a local run. Ridge regression needs inputs that are
    vectors. It and the mean use training and validation rows.
    """
    predicted: dict[Alone, list[Array]] = {"network": predict_part(clients, networks, "test", run)}
    data = clients.data
    known = [_join_rows(*parts) for parts in zip(data.train, data.validation, strict=True)]
    test = [_to_numpy(rows) for rows in data.test]
    if known[0][0].ndim == 2:
        predicted["ridge regression"] = [
            fit_site_ridge(*rows).predict(inputs) for rows, (inputs, _) in zip(known, test, strict=True)
        ]
    predicted["mean"] = [
        np.broadcast_to(targets.mean(axis=0), held_out.shape)
        for (_, targets), (_, held_out) in zip(known, test, strict=True)
    ]
    return predicted


def choose_alone(predicted: Mapping[Alone, Sequence[Array]], targets: Sequence[Array]) -> Alone:
    """Return the method with the least squared error over the test rows (N_m, C) of all sites.

    Examples
    --------
    >>> targets = [np.zeros((2, 1)), np.zeros((1, 1))]
    >>> network, linear = ([y + error for y in targets] for error in (2, 1))
    >>> choose_alone({"network": network, "ridge regression": linear}, targets)
    'ridge regression'
    """
    errors = {method: sum_squares(rows, targets) for method, rows in predicted.items()}
    return min(errors, key=lambda method: np.fmin(errors[method], np.inf))  # NaN is infinite


def sum_squares(predicted: Sequence[Array], targets: Sequence[Array]) -> float:
    """Return the squared error over all rows and targets."""
    return float(sum(((f - y) ** 2).sum() for f, y in zip(predicted, targets, strict=True)))


def _join_rows(*parts: Rows) -> tuple[Array, Array]:
    inputs, targets = zip(*map(_to_numpy, parts), strict=True)
    return np.concatenate(inputs), np.concatenate(targets)


def _to_numpy(rows: Rows) -> tuple[Array, Array]:
    inputs, targets = (each.cpu().numpy() for each in rows)
    return inputs, targets
