"""What sites of a blended run predict alone: each also trains a network without the others."""

from __future__ import annotations

from typing import NamedTuple

from fedgram._util.arrays import Array
from fedgram.federation.client_data import Rows
from fedgram.federation.clients import Clients
from fedgram.federation.site_models import SiteModels, find_companion, predict_part
from fedgram.theory.site_ridge import fit_site_ridge

# Validation rows that choose between the network and ridge regression. With fewer, the choice is chance:
# on 'caschools' of benchmarks/site_problems.py, one row a site, it raised the test error by half.
MIN_VALIDATION_ROWS = 3


class SitePrediction(NamedTuple):
    """Predictions (N, C) of a site's test rows, by its network or by ridge regression."""

    rows: Array
    is_linear: bool


def predict_alone(clients: Clients, models: SiteModels, run: int) -> list[SitePrediction]:
    """Predict the test rows of every site of a blended run without the other sites.

    A site predicts with the network that it trains alone or with a ridge regression on its rows, whichever
    has less error on its validation rows: few epochs do not make joining look better.
    """
    companion = find_companion(clients, run)
    validation, test = (
        predict_part(clients, models.local, part, companion) for part in ("validation", "test")
    )
    rows = (map(_to_numpy, part) for part in (clients.data.train, clients.data.validation, clients.data.test))
    return list(map(_predict_site, *rows, validation, test))


def _predict_site(
    train: tuple[Array, Array],
    validation: tuple[Array, Array],
    test: tuple[Array, Array],
    validation_network: Array,
    test_network: Array,
) -> SitePrediction:
    inputs, targets = validation
    if inputs.ndim == 2 and len(inputs) >= MIN_VALIDATION_ROWS:  # no images, and enough to choose by
        ridge = fit_site_ridge(train, validation)
        if ridge.validation_error < ((validation_network - targets) ** 2).sum():
            return SitePrediction(ridge.predict(test[0]), is_linear=True)
    return SitePrediction(test_network, is_linear=False)


def _to_numpy(rows: Rows) -> tuple[Array, Array]:
    inputs, targets = (each.cpu().numpy() for each in rows)
    return inputs, targets
