"""The client: describe its data, train a round, evaluate the average, keep the chosen model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.version import __version__
from fedgram.federation.client_data import ClientData, PooledMoments
from fedgram.federation.clients import Clients, check_independent_starts
from fedgram.federation.evaluation import OutputRows
from fedgram.federation.site_models import (
    SiteModels,
    add_companions,
    mean_squares,
    predict_sites,
    squared_errors,
    trained_map,
    with_heads,
)
from fedgram.flower.client_state import (
    BACKBONE,
    FILL,
    INPUTS,
    LEVELS,
    SITE,
    TARGETS,
    ClientStore,
    hash_request,
)
from fedgram.flower.config import FederationConfig
from fedgram.flower.messages import (
    BLEND,
    EVALUATE,
    FINISH,
    QUERY,
    TRAIN,
    TRAINING_SUMS,
    TRIAL,
    Payload,
    log,
    name_sums,
    read_sums,
    reply_format,
)
from fedgram.flower.own_model import (
    blend,
    compare_ratios,
    predict_methods,
    solve_alone,
    sum_errors,
    sum_features,
)
from fedgram.flower.scaling import Scaling, measure_columns
from fedgram.flower.secure_chooser import read_method
from fedgram.flower.secure_client import SECURE_ANSWERS, check_allowed
from fedgram.flower.site import Site
from fedgram.flower.site_network import REPLY, Arrays, SiteNetwork
from fedgram.nets.cuda import storage_dtype
from fedgram.nets.model import draw_example, fingerprint
from fedgram.nets.stack import Tensors
from fedgram.runs.advice import Alone
from fedgram.runs.joining import JOINING, Joining, describe_rmse, measure_joining
from fedgram.runs.store import safe_name
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import EffectStrengths, Trial, fit_site_effects, trial_errors
from fedgram.training import devices

POOLED = ("mean", "covariance", "within")
"""Arrays of `PooledMoments` in a request."""


class Client:
    """One client of a federation; its rows never leave it, and its backbone only with `full-model`."""

    def __init__(self, site: Site, config: FederationConfig, scaling: Scaling | None = None) -> None:
        """`scaling` is how the site's rows were standardized."""
        self.site = site.hold_out_validation(config.validation_fraction)
        self.config, self.procedure, self.scaling = config, config.run.procedure, scaling
        self.runs = add_companions([config.run])
        self.device = devices.resolve_device(site.device)
        devices.check_precision(self.device, config.settings.precision)

    @cached_property
    def data(self) -> ClientData:
        """The rows on the device."""
        site, dtype = self.site, storage_dtype(self.config.settings.precision)
        test, validation = (
            {} if each is None else {site.name: each} for each in (site.test, site.validation)
        )
        return ClientData.from_splits({site.name: site.train}, test, self.device, dtype, validation)

    def reply(self, kind: str, request: Payload) -> Payload:
        """Answer a message of one of KINDS, and sign the answer."""
        check_allowed(kind, self.config.secure)
        answer = ANSWERS[kind](self.standardize(request), request)
        if answer.error:
            return answer
        site, key = self.site, self.site.load_key()
        identity = {
            "client": site.name,
            "key": key.public,
            "nonce": request.metadata["nonce"],
            "rows": len(site.train),
            "fingerprint": key.fingerprint(site.train, site.test, site.validation),
        }
        return key.sign(replace(answer, metadata={**answer.metadata, **identity}))

    def standardize(self, request: Payload) -> Client:
        """Return the client with its rows in the units of a request."""
        scaling = Scaling.from_arrays(request.arrays)
        return Client(scaling.encode_site(self.site), self.config, scaling) if scaling else self

    def describe(self, request: Payload) -> Payload:
        """Return target moments and a description of rows and network."""
        site, config = self.site, self.config
        check_independent_starts(site.backbone, [config.run.procedure])
        model, inputs = draw_example(site.backbone, site.train, config.settings.features)
        moments = site.moments
        metadata = {
            "version": __version__,
            "test_rows": site.test_rows,
            "validation_rows": site.validation_rows,
            "targets": list(moments.targets),
            "parameters": model.size,
            "network": fingerprint(model, inputs),
            "width": model.feature.in_features,
            "backbone_size": sum(each.numel() for each in model.backbone.parameters() if each.requires_grad),
        }
        arrays = {"own_mean": moments.mean[0], "own_covariance": moments.covariance[0]}
        if config.standardize:
            columns, inputs = measure_columns(site), site.train.inputs.shape[1]
            arrays |= {"input_mean": columns.mean[:inputs], "input_variance": columns.variance[:inputs]}
            metadata["inputs"] = inputs
        return Payload(arrays, metadata)

    def train(self, request: Payload) -> Payload:
        """Train one round from what the server shares, or repeat the stored reply to the same request.

        The reply has the round that training resumed from ("after").
        """
        given, store = request.metadata, self._store(request)
        number = int(given["round"])
        request_hash, before = hash_request(number, request.arrays), store.find_round_before(number)
        arrays = store.read_round(number, request_hash)
        if arrays is None:
            with devices.use_device(self.device):
                arrays, error = self._train_round(number, request.arrays, store.read_round(before))
            best = (int(given.get("best", 0)), int(given.get("best_local", 0)))
            store.write_round(number, request_hash, arrays, error, best)
        names = reply_format(TRAIN, self.procedure).arrays
        return Payload({name: arrays[REPLY + name][0] for name in names}, {"round": number, "after": before})

    def evaluate(self, request: Payload) -> Payload:
        """Return objective, errors and sums with the averaged model, and store it."""
        stored = self._store(request).read_round(int(request.metadata["round"]))
        if stored is None:
            return Payload.from_error(f"site '{self.site.name}' has not trained this round.")
        with devices.use_device(self.device):
            network = self._build_network(request.arrays, stored)
            clients = network.clients
            shared, models = network.deploy(request.arrays)
            self._write_model(request, clients, SiteModels(clients.of_run(models, 0)))
            outputs, _ = clients.training_outputs()
            rows = OutputRows.from_outputs(outputs[0])
            measured = shared.evaluate(clients, clients.groups[0], rows)
            arrays = dict(
                zip(("objective", "train_mse", "test_mse"), map(_first_model, measured), strict=True)
            )
            arrays |= self._measure_validation(clients, clients.of_run(models, 0))
        return Payload(arrays, request.round)

    def try_strengths(self, request: Payload) -> Payload:
        """Return squared errors on validation rows with each of the strengths of a secure request."""
        with devices.use_device(self.device):
            clients, models = self._load_models(request)
            training, validation = sum_features(clients, models)
        trials = [_read_trial(each) for each in request.arrays["trials"]]
        toward = trained_map(models)
        pooled = FeatureSums.from_triangle(request.arrays[TRAINING_SUMS], len(request.arrays["bias"]))
        errors = trial_errors(training, validation, pooled, trials, toward)
        return Payload({"errors": np.maximum(errors[:, 0], 0.0)}, request.round)  # rounding

    def blend(self, request: Payload) -> Payload:
        """Return sums that compare the chosen model with the one trained alone, by ratio of its head."""
        with devices.use_device(self.device):
            clients, models, unseen = self._choose_models(request)
            arrays = compare_ratios(clients, models.local, unseen)
            arrays |= sum_errors(clients, self._predict_alone(request, clients))
        return Payload(arrays, request.round)

    def finish(self, request: Payload) -> Payload:
        """Store the chosen model; return its test error, and share and error of the one trained alone."""
        arrays: Arrays = {}
        with devices.use_device(self.device):
            clients, models, unseen = self._choose_models(request)
            alone: list[Array] = []
            if models.local:
                method = read_method(request.arrays)
                alone = self._predict_alone(request, clients)[method]
                models = blend(request.arrays, clients, models, unseen)
                arrays["local_share"] = models.shares[0]
            self._write_model(request, clients, models)
            predicted = predict_sites(clients, models, "test", 0)
            targets = clients.data.target_arrays("test")
            arrays["test_mse"] = mean_squares(predicted, targets)[0]
        if alone:
            in_time_order = "time" in self.config.row_selection
            compared = measure_joining(predicted, alone, targets, in_time_order=in_time_order)
            arrays |= {name: values[0] for name, values in compared.items()}
            self._report_joining(request, arrays, method, alone[0], predicted[0], targets[0])
        return Payload(arrays, {**request.round, "chosen": self._chosen_round(request)})

    def _predict_alone(self, request: Payload, clients: Clients) -> dict[Alone, list[Array]]:
        """Predict the test rows without the other sites, by method, with the site's own best round."""
        best = self._store(request).find_best_round()
        return predict_methods(clients, solve_alone(clients, self._find_network(request, best).stack.tensors))

    def _report_joining(
        self,
        request: Payload,
        arrays: Arrays,
        method: Alone,
        alone: Array,
        joined: Array,
        targets: Array,
    ) -> None:
        """Log and store what joining changes at this site, also by target.

        With secure sums, nobody else knows it.
        """
        names, rows = ("test_mse", *JOINING), self.site.test_rows
        chosen = {name: [float(arrays[name])] for name in names}
        if joining := Joining.from_chosen(chosen, [self.site.name], [rows]):
            scale = self.scaling.target_scale if self.scaling else 1.0
            errors = (each - targets for each in (alone, joined))
            before, after = (scale * np.sqrt((each**2).mean(axis=0)) for each in errors)
            rmse = {
                name: {"alone": float(before[c]), "joined": float(after[c])}
                for c, name in enumerate(self.site.moments.targets)
            }
            log.info(joining.describe_site(0))
            log.info(describe_rmse(rmse))
            found = {name: float(arrays[name]) for name in names if np.isfinite(arrays[name])}
            named = {"site": self.site.name, "alone": method, "test_rows": rows}
            self._store(request).write_joining({**named, **found, "rmse": rmse})

    def _chosen_round(self, request: Payload) -> int:
        """Return the round of the chosen model: the site's own best, or the one that the server names."""
        return (
            self._store(request).find_best_round() if self.procedure.local else int(request.metadata["model"])
        )

    def _load_models(self, request: Payload) -> tuple[Clients, Tensors]:
        """Return the run's model of the round that a request names, with the averages of the request.

        A site that missed that round uses its own layers of the last round before it.
        """
        network = self._find_network(request, self._chosen_round(request))
        _, models = network.deploy(request.arrays)
        own = network.clients.of_run(models, 0)
        return network.clients, {
            name: each.to(network.stack.tensors[name].dtype) for name, each in own.items()
        }

    def _find_network(self, request: Payload, number: int) -> SiteNetwork:
        """Build the networks of a round, or of the last one before it that is stored."""
        store = self._store(request)
        stored = store.read_round(number) or store.read_round(store.find_round_before(number))
        if stored is None:
            raise InputError(
                f"Site '{self.site.name}' has no network of round {number} in '{store.folder}'. Restore the "
                "folder, or start a new run.",
                field="folder",
            )
        return self._build_network(request.arrays, stored)

    def _choose_models(self, request: Payload) -> tuple[Clients, SiteModels, Tensors]:
        """Return the models of the chosen rounds, with the site's own head and without shares.

        Also return the shared model with a head that has not seen the validation rows.
        """
        clients, tensors = self._load_models(request)
        if self.procedure.local:
            tensors = solve_alone(clients, tensors)
        unseen = tensors
        if self.procedure.moment_head:
            training, validation = sum_features(clients, tensors)
            pooled, held_out = read_sums(request.arrays, len(request.arrays["bias"]))
            trial, toward = _read_trial(request.arrays[TRIAL]), trained_map(tensors)

            def fit(sums: FeatureSums, total: FeatureSums) -> Tensors:
                head = total.moment_head(trial.ridge, toward)
                return with_heads(tensors, fit_site_effects(sums, head, total, trial.strengths))

            unseen = fit(training, pooled)
            tensors = fit(training + validation, pooled + held_out)
        local: Tensors = {}
        if self.procedure.blended:
            stack = self._find_network(request, int(request.metadata["best_local"])).stack
            local = {name: each[1:] for name, each in stack.tensors.items()}
        return clients, SiteModels(tensors, local=local), unseen

    def _measure_validation(self, clients: Clients, models: Tensors) -> Arrays:
        if self.procedure.local:
            return {}
        if not self.procedure.moment_head:
            return {"validation_error": squared_errors(clients, models, 0)[0]}
        return name_sums(*(sums[0] for sums in sum_features(clients, models)))

    def _store(self, request: Payload) -> ClientStore:
        name, federation_id = safe_name(self.config.name), safe_name(str(request.metadata["federation"]))
        return ClientStore(self.site.own_folder / name / self.config.run.name / federation_id)

    def _build_network(self, arrays: Mapping[str, Array], stored: Arrays | None) -> SiteNetwork:
        """Build the networks after a stored round, or the initial ones if there is none."""
        pooled = PooledMoments(*(arrays[name] for name in POOLED))
        site, config = self.site, self.config
        clients = Clients(self.data, pooled, site.backbone, self.runs, config.settings, self.device)
        return SiteNetwork(clients, stored)

    def _train_round(
        self, number: int, arrays: Mapping[str, Array], before: Arrays | None
    ) -> tuple[Arrays, float]:
        """Train one round; return the arrays to store, and the error that the site chooses its round by."""
        network = self._build_network(arrays, before)
        returned = network.train(number, arrays)
        stored = network.collect(returned, reply_format(TRAIN, self.procedure).arrays)
        if not network.is_local.any():
            return stored, -float(number)
        error = network.local_error()
        has_diverged = np.isinf(error)
        stored[f"{REPLY}diverged"] = np.maximum(stored[f"{REPLY}diverged"], has_diverged)
        # the server reads no error of a network that diverged, and accepts no infinite number
        stored[f"{REPLY}local_error"] = np.full(len(self.runs), 0.0 if has_diverged else error)
        # a site without validation rows keeps its last round
        return stored, error if self.site.validation_rows else -float(number)

    def _write_model(self, request: Payload, clients: Clients, models: SiteModels) -> None:
        """Write the network that the site predicts with, and the one trained alone with its share."""
        tensors = models.tensors
        if self.procedure.centered:  # predict targets with their mean
            mean = torch.as_tensor(self.site.moments.mean).to(tensors["head.bias"])
            tensors = {**tensors, "head.bias": tensors["head.bias"] + mean}
        arrays = replace(models, tensors=tensors).to_arrays(clients.stack.dtype)
        own = {name: value[0] for name, value in arrays.items()}
        scaling = self.scaling.to_arrays() if self.scaling else {}
        names = {
            INPUTS: self.site.inputs,
            LEVELS: self.site.levels,
            FILL: self.site.fill,
            TARGETS: self.site.targets,
            BACKBONE: self.site.backbone if isinstance(self.site.backbone, str) else "",
            SITE: self.site.name,
        }
        self._store(request).write_model(own | scaling, names)


ANSWERS = {
    QUERY: Client.describe,
    TRAIN: Client.train,
    EVALUATE: Client.evaluate,
    BLEND: Client.blend,
    FINISH: Client.finish,
    **SECURE_ANSWERS,
}
"""What a client does with each type of message."""


def _read_trial(values: Array) -> Trial:
    ridge, *strengths = values.tolist()
    return Trial(ridge, EffectStrengths(*strengths))


def _first_model(values: Tensor) -> Array:
    return values[0].double().cpu().numpy()
