"""Predict rows of sites with trained models that are kept as arrays, without the training rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import quote_list
from fedgram.data.columns import Columns
from fedgram.data.encoding import Encoding
from fedgram.federation.site_models import SiteModels
from fedgram.nets.model import Backbone, Model, draw
from fedgram.nets.stack import Tensors
from fedgram.nets.stored_model import Arrays, check_predictions, predict_stored, select_model
from fedgram.runs.procedure import Procedure
from fedgram.theory.blend import mix
from fedgram.training.inference import average_networks
from fedgram.training.site_learning import Learned


@dataclass(frozen=True, eq=False)
class SitePredictor:
    """Models of M sites, in standardized units.

    own (M, ...): each site's model; empty after centralized training. shared (...): for other rows; empty if
    sites keep their own backbones. local (M, ...), shares (M,), and limits (M, 2, C): second model of a
    blended procedure, its share, and the least and largest of its predictions. offset (M, C): added to
    predictions of `own`.
    """

    procedure: str
    sites: tuple[str, ...]
    encoding: Encoding
    backbone: Backbone
    features: int
    own: Arrays
    shared: Arrays
    local: Arrays
    shares: Array
    limits: Array
    offset: Array

    @classmethod
    def from_learned(
        cls, learned: Learned, procedure: str, encoding: Encoding, sites: Sequence[str]
    ) -> SitePredictor:
        """Copy the models of a procedure; sites (M,) are the names that people use."""
        models, options = learned.models(procedure), Procedure.parse(procedure)
        data = learned.federation.clients.data
        client_weights, mean = data.client_weights.cpu().numpy(), data.mean.cpu().numpy()
        # A site without validation rows has too few rows for a model of its own.
        is_validated = np.array([len(targets) > 0 for _, targets in data.validation])
        return cls(
            procedure=procedure,
            sites=tuple(sites),
            encoding=encoding,
            backbone=learned.plan.backbone,
            features=learned.plan.config.features,
            own={} if options.centralized else _to_arrays(models.tensors),
            shared=_shared_model(models, options, client_weights),
            local=_to_arrays(models.local),
            shares=models.shares * is_validated if models.local else np.zeros(len(sites)),
            limits=models.limits,
            offset=mean if options.centered else np.zeros_like(mean),
        )

    def predict(self, columns: Columns, rows_by_site: Mapping[str | None, Array]) -> Array:
        """Predict rows (N, C) in the targets' units.

        Parameters
        ----------
        columns : dict of arrays (N,)
            Inputs by name.
        rows_by_site : dict of int arrays
            Indices of the rows of each site; those of None use the shared model without a warning.

        Raises
        ------
        InputError
            If sites are unknown and the procedure has no shared model, or if a prediction is not finite.
        """
        self._check_sites(rows_by_site)
        inputs = torch.from_numpy(self.encoding.encode_new_inputs(columns))
        # float32 as in training: lazy layers draw values of the dtype that they receive
        model = draw(self.backbone, inputs[:2].float(), self.features, len(self.encoding.targets), 0, None)
        model = model.double()  # other rows of a call then have no effect
        values = np.empty((len(inputs), len(self.encoding.targets)))
        for site, rows in rows_by_site.items():
            values[rows] = self._predict_site(model, inputs[rows], site)
        check_predictions(values)
        return self.encoding.decode_targets(values)

    def _predict_site(self, model: Model, inputs: Tensor, site: str | None) -> Array:
        if site not in self.sites or not self.own:
            return predict_stored(model, self.shared, inputs)
        m = self.sites.index(site)
        share = self.shares[m]
        predicted = predict_stored(model, select_model(self.own, m), inputs) + self.offset[m]
        if share > 0:
            own = predict_stored(model, select_model(self.local, m), inputs)
            predicted = mix(own, predicted, share, self.limits[m])
        return predicted

    def _check_sites(self, sites: Mapping[str | None, Array]) -> None:
        unknown = [site for site in sites if site is not None and site not in self.sites]
        if not self.shared and (unknown or None in sites):
            rows = f"site {quote_list(unknown)}" if unknown else "rows without a site"
            raise InputError(
                f"The procedure '{self.procedure}' has no shared model for {rows}. Pass the sites of the "
                "training, or train with procedure='auto'.",
                field="sites",
            )
        if unknown:
            warnings.warn(
                f"The shared model predicts rows of sites that did not take part: {quote_list(unknown)}.",
                stacklevel=4,  # the caller of FederatedRegressor.predict
            )


def _shared_model(models: SiteModels, procedure: Procedure, client_weights: Array) -> Arrays:
    """Return the model for sites that did not take part."""
    if models.shared or procedure.centralized:
        return _to_arrays(models.shared or {name: each[0] for name, each in models.tensors.items()})
    if not procedure.has_shared_network:
        return {}
    return average_networks(_to_arrays(models.tensors), client_weights)


def _to_arrays(tensors: Tensors) -> Arrays:
    return {name: value.detach().cpu().numpy().copy() for name, value in tensors.items()}
