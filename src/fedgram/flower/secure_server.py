"""The server of a secure federation: it sees totals over clients only.

It predicts the limit from sums, then averages what clients return as sums. Every round is stored, and the
same command resumes a run after its last finished round.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram._util.version import __version__
from fedgram.flower.config import FederationConfig
from fedgram.flower.initial_head import draw_initial_head
from fedgram.flower.messages import (
    EVALUATE,
    SUMS,
    TOTALS,
    TRAIN,
    TRAINING_SUMS,
    TRIAL,
    VALIDATION_SUMS,
    GridTransport,
    averaged_arrays,
    reply_format,
)
from fedgram.flower.secure_client import summed_names, trained_names
from fedgram.flower.secure_messages import EVALUATED, FINISHED, MOMENTS, ROUND, TRAINED
from fedgram.flower.secure_record import SecureRecord
from fedgram.flower.secure_session import SecureSums
from fedgram.flower.server import ALREADY_FINISHED
from fedgram.runs import Runs
from fedgram.runs.audit import AUDIT, AuditLog
from fedgram.runs.expectation import SYMBOLS, Reference
from fedgram.runs.procedure import BIAS_RULES, Procedure
from fedgram.theory.geometry import psd
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.site_effects import EffectStrengths, Trial, search_strengths
from fedgram.theory.sum_prediction import SumPrediction, Total, predict_from_sums

HEAD_AND_BIAS = ("head", "bias")

log = logging.getLogger("flwr")


def run_secure_server(transport: GridTransport, config: FederationConfig) -> SecureRecord:
    """Predict and train a federation under secure sums, or resume it; return the stored run."""
    check_secure(config)
    folder = Runs(config.out).folder(config.name, config.backbone, config.run)
    with lock_folders([folder]):
        stored = SecureRecord.load(folder)
        if stored is not None:
            stored.check_settings(config)
            if is_done(stored, config):
                log.info(ALREADY_FINISHED)
                return stored
        federation = uuid4().hex if stored is None else stored.document["federation"]
        audit = AuditLog.open(folder / AUDIT)
        audit.append("start", version=__version__, federation=federation)
        sums = SecureSums(transport, config, audit, federation, stored.document["keys"] if stored else {})
        sums.wait_for_clients()
        server = SecureServer(sums, config, folder, stored)
        for number in range(server.record.number + 1, config.settings.rounds + 1):
            server.run_round(number)
        if not is_done(server.record, config):
            server.finish(config.settings.rounds)
        return server.record


def is_done(record: SecureRecord, config: FederationConfig) -> bool:
    """Whether all rounds are finished, and the moment head is solved if the procedure has one."""
    return record.complete and (not config.run.procedure.moment_head or "chosen" in record.document)


def check_secure(config: FederationConfig) -> None:
    """Refuse settings that need more than totals."""
    procedure = config.run.procedure
    refused = {
        "local": procedure.local, "blended": procedure.blended, "site-effects": procedure.site_effects,
        "moment-head=k": procedure.moment_head > 1,
    }  # fmt: skip
    if words := [word for word, is_set in refused.items() if is_set]:
        raise InputError(
            f"Procedure '{procedure.name}' cannot run with secure = true: '{words[0]}' needs more than "
            "totals. Remove it.",
            field="procedure",
        )
    if config.aggregation.name != "mean":
        raise InputError(
            f"aggregation = '{config.aggregation.method}' needs every client's return, which secure = true "
            "hides. Use 'mean' without 'clip-returns'.",
            field="aggregation",
        )


class SecureServer:
    """The prediction, and what all clients share."""

    def __init__(
        self, sums: SecureSums, config: FederationConfig, folder: Path, stored: SecureRecord | None = None
    ) -> None:
        self.sums, self.config = sums, config
        given: Any = sums.introduction
        self.targets = tuple(given["targets"])
        self.sizes = {
            "C": len(self.targets), "P": config.settings.features, "D": given["width"],
            "S": given["backbone_size"], "B": len(BIAS_RULES),
        }  # fmt: skip
        self.record = stored or SecureRecord.create(
            folder, config, sums.federation, sums.keys_of_members, self.targets, self._predict()
        )
        self.prediction = self.record.prediction
        pooled = self.prediction.pooled
        self.pooled = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        if self.record.number:
            self.shared = self.record.averages
            log.info("Resuming after round %d of %d.", self.record.number, config.settings.rounds)
        else:
            self.shared = dict(zip(HEAD_AND_BIAS, draw_initial_head(config, len(self.targets)), strict=True))

    def run_round(self, number: int) -> None:
        """Broadcast, average what clients return, let them evaluate the average, store the round."""
        procedure = self.config.run.procedure
        names = trained_names(procedure)
        shapes = {name: self._shape(TRAIN, name) for name in names}
        total = self._sum(TRAINED, number, self.shared, 1 + _size(shapes.values()))
        trained, _ = _split(total.numbers, shapes)
        average = {name: trained[name] for name in averaged_arrays(procedure)}
        measured, _, evaluated = self._evaluate(number, average)
        self.shared = average
        target, gram = find_target(self.prediction, procedure)
        error = float(psd.relative_error(psd.gram(average["head"]), gram))
        line = {
            "round": number, "clients": list(total.clients), "evaluated": list(evaluated),
            "error": {target: error}, "local_objective": float(trained["local_objective"]), **measured,
        }  # fmt: skip
        self.record.add_round(line, average)
        for name in self.sums.members:
            if name not in total.clients:
                log.warning("Client '%s' did not reply in round %d; averaging without it.", name, number)
        distance = f"; relative distance of the head's Gram to {SYMBOLS[target]}: {error:.1e}"
        log.info(
            "Round %d of %d: %d of %d clients replied%s.",
            number, self.config.settings.rounds, len(total.clients), len(self.sums.members),
            "" if procedure.without_limit else distance,
        )  # fmt: skip

    def finish(self, number: int) -> None:
        """Solve the moment head from totals; clients keep the model with it."""
        _, found, _ = self._evaluate(number, self.shared)
        training, validation = (
            FeatureSums(*(found[part + name] for name in SUMS)) for part in (TRAINING_SUMS, VALIDATION_SUMS)
        )

        def errors_of(trials: Sequence[Trial]) -> Array:
            return np.array([[validation.squared_error(training.ridge(each.ridge)).sum()] for each in trials])

        trial, _ = search_strengths(errors_of, effects=False)
        totals = {TOTALS + name: getattr(training + validation, name) for name in SUMS}
        strengths = np.array([trial.ridge, *vars(EffectStrengths(np.inf)).values()])
        request = {**self.shared, **totals, TRIAL: strengths}
        total = self._sum(FINISHED, number, request, 2, model=number)
        rows, error = map(float, total.numbers)
        self.record.document["chosen"] = {"ridge": trial.ridge, "test_mse": error / rows if rows else None}
        self.record.write()
        log.info("Solved the moment head of %d clients, ridge %g.", len(total.clients), trial.ridge)

    def _predict(self) -> SumPrediction:
        size = self.sizes["C"]
        log.info("Predicting from secure sums, about ten of them with two messages each.")
        prediction = predict_from_sums(
            lambda head: self.sums.sum(ROUND, 0, {"head": head}, 1 + size**2),
            lambda clients: self.sums.sum_exactly(clients, MOMENTS, 0, 2 + size + 3 * size**2),
            size,
            self.config.settings.penalty,
        )
        log.info(
            "Predicted the gap of %d clients from sums in %d rounds: %.2g %% of G_cen.",
            len(prediction.clients), prediction.rounds, 100 * prediction.relative_gap,
        )  # fmt: skip
        for note in prediction.notes:
            log.warning(note)
        return prediction

    def _evaluate(
        self, number: int, average: Mapping[str, Array]
    ) -> tuple[dict[str, Any], dict[str, Array], tuple[str, ...]]:
        """Return mean errors over all rows, totals of sums over rows, and who evaluated."""
        training = {name: self._shape(EVALUATE, name) for name in ("objective", "train_mse")}
        test = {"test_mse": self._shape(EVALUATE, "test_mse")}
        sums = {name: self._shape(EVALUATE, name) for name in summed_names(self.config.run.procedure)}
        size = 2 + _size([*training.values(), *test.values(), *sums.values()])
        total = self._sum(EVALUATED, number, average, size)
        errors, rest = _split(total.numbers, training)
        tested, rest = _split(rest, test)
        totals, _ = _unflatten(rest, sums)
        measured = {name: _to_json(value) for name, value in (errors | tested).items()}
        return measured, totals, total.clients

    def _sum(self, task: str, number: int, arrays: Mapping[str, Array], size: int, **metadata: int) -> Total:
        return self.sums.sum(task, number, {**arrays, **self.pooled}, size, **metadata)

    def _shape(self, kind: str, name: str) -> tuple[int, ...]:
        axes = reply_format(kind, self.config.run.procedure).arrays[name]
        return tuple(self.sizes[axis] for axis in axes)


def find_target(prediction: SumPrediction, procedure: Procedure) -> tuple[Reference, Array]:
    """Return the Gram that a procedure trains to, and its name."""
    if procedure.corrected != 1:
        return "barycenter", prediction.barycenter
    if procedure.centered:
        return "within", prediction.within
    return "centralized", prediction.centralized


def _to_json(value: Array) -> Any:
    """Convert to numbers or a list of them; None without rows."""
    return value.tolist() if np.isfinite(value).all() else None


def _size(shapes: Any) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)


def _split(
    numbers: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Array], list[Any]]:
    """Divide weighted sums by their rows, the first number; NaN without rows. Also return the rest."""
    rows, *values = numbers
    arrays, rest = _unflatten(values, shapes)
    scale = float(rows) if rows else np.nan
    return {name: value / scale for name, value in arrays.items()}, rest


def _unflatten(
    values: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Array], list[Any]]:
    """Cut numbers into arrays; also return the rest."""
    arrays, rest = {}, list(values)
    for name, shape in shapes.items():
        size = _size([shape])
        arrays[name] = np.array([float(value) for value in rest[:size]]).reshape(shape)
        rest = rest[size:]
    return arrays, rest
