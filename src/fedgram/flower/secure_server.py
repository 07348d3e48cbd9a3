"""The server of a secure federation: it sees totals over clients only.

It predicts the limit from sums, then averages what clients return as sums. Every round is stored, and the
same command resumes a run after its last finished round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.locks import lock_folders
from fedgram._util.version import __version__
from fedgram.flower.chooser import absorb_head
from fedgram.flower.config import FederationConfig
from fedgram.flower.initial_head import draw_initial_head
from fedgram.flower.messages import (
    EVALUATE,
    TRAIN,
    GridTransport,
    averaged_arrays,
    complete_axes,
    log,
    read_sums,
    reply_format,
)
from fedgram.flower.scaling import Scaling, name_inputs
from fedgram.flower.secure_chooser import SecureChooser
from fedgram.flower.secure_client import summed_names, trained_names
from fedgram.flower.secure_messages import EVALUATED, MOMENTS, ROUND, SCALES, TRAINED
from fedgram.flower.secure_session import SecureSums
from fedgram.flower.server import ALREADY_FINISHED, HEAD_AND_BIAS, check_validation
from fedgram.runs import Runs
from fedgram.runs.audit import AUDIT, AuditLog
from fedgram.runs.choice import describe_choice
from fedgram.runs.expectation import SYMBOLS, Reference
from fedgram.runs.procedure import Procedure
from fedgram.runs.secure_record import SecureRecord
from fedgram.theory.geometry import psd
from fedgram.theory.sum_prediction import SumPrediction, Total, predict_from_sums


def run_secure_server(transport: GridTransport, config: FederationConfig) -> SecureRecord:
    """Predict and train a federation under secure sums, or resume it; return the stored run."""
    check_secure(config)
    folder = Runs(config.out).folder(config.name, config.backbone, config.run)
    with lock_folders([folder]):
        stored = SecureRecord.load(folder)
        if stored is not None:
            stored.check_settings(describe_settings(config))
            if stored.complete:
                log.info(ALREADY_FINISHED)
                return stored
        federation = uuid4().hex if stored is None else stored.document["federation"]
        audit = AuditLog.open(folder / AUDIT)
        audit.append("start", version=__version__, federation=federation)
        known = stored.document if stored else {}
        sums = SecureSums(transport, config, audit, federation, known.get("keys"), known.get("fingerprints"))
        sums.wait_for_clients()
        server = SecureServer(sums, config, folder, stored)
        for number in range(server.record.number + 1, config.settings.rounds + 1):
            server.run_round(number)
        if not server.record.complete:
            server.finish(config.settings.rounds)
        return server.record


def describe_settings(config: FederationConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share, as JSON values."""
    run = {"procedure": config.run.procedure.name, "seed": config.run.seed}
    return run | asdict(config.settings) | {"data": dict(config.row_selection)}


def check_secure(config: FederationConfig) -> None:
    """Refuse settings that need more than totals."""
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
        self.sizes = complete_axes(
            {
                "C": len(self.targets), "P": config.settings.features, "D": given["width"],
                "S": given["backbone_size"],
            }
        )  # fmt: skip
        check_validation(config.run.procedure, sums.count_validation_rows(sums.members) > 0)
        self.record = stored or SecureRecord.create(folder, self._describe_start())
        scaling = self.record.document["scaling"]
        self.units = Scaling.from_document(scaling).to_arrays() if scaling else {}
        if not self.record.has_prediction:
            self.record.add_prediction(self._predict())
        self.prediction = self.record.prediction
        pooled = self.prediction.pooled
        self.pooled = {"mean": pooled.mean, "covariance": pooled.covariance, "within": pooled.within}
        self.pooled |= self.units
        if self.record.number:
            self.shared = self.record.averages
            log.info("Resuming after round %d of %d.", self.record.number, config.settings.rounds)
        else:
            self.shared = dict(zip(HEAD_AND_BIAS, draw_initial_head(config, len(self.targets)), strict=True))

    def run_round(self, number: int) -> None:
        """Broadcast, average what clients return, let them evaluate the average, store the round."""
        procedure = self.config.run.procedure
        names, has_local = trained_names(procedure), procedure.trains_alone
        shapes = {name: self._shape(TRAIN, name) for name in names}
        total = self.sum_task(
            TRAINED, number, self.shared, 1 + _size(shapes.values()) + has_local,
            best_local=self.record.best_local,
        )  # fmt: skip
        trained, local_error = _split(total.numbers, shapes)
        average = {name: trained[name] for name in averaged_arrays(procedure)}
        measured, sums, evaluated = self._evaluate(number, average)
        self.shared = average or self.shared
        gram = psd.gram(self.shared["head"])
        error = {
            name: float(psd.relative_error(gram, target))
            for name, target in find_target(self.prediction, procedure).items()
        }
        line = {
            "round": number, "clients": list(total.clients), "evaluated": list(evaluated),
            "error": error,
            "local_objective": float(trained["local_objective"]), **measured,
        }  # fmt: skip
        if has_local:
            rows = self.sums.count_validation_rows(total.clients)
            line["local_error"] = float(local_error[0]) / rows if rows else None
        every = procedure.moment_head
        if every > 1 and number % every == 0 and number < self.config.settings.rounds:
            training, validation = read_sums(sums, len(self.targets))
            trial = self._build_chooser(number).choose_trial(average, training, validation, deviations=False)
            self.shared = average | absorb_head(average, training, trial.ridge)
        self.record.add_round(line, self.shared)
        for name in self.sums.members:
            if name not in total.clients:
                log.warning("Client '%s' did not reply in round %d; averaging without it.", name, number)
        distance = [
            f"; relative distance of the head's Gram to {SYMBOLS[name]}: {value:.1e}"
            for name, value in error.items()
            if not procedure.without_limit
        ]
        log.info(
            "Round %d of %d: %d of %d clients replied%s.",
            number, self.config.settings.rounds, len(total.clients), len(self.sums.members),
            "".join(distance),
        )  # fmt: skip

    def finish(self, number: int) -> None:
        """Choose strengths and shares from totals; clients keep the models of the last round."""
        sums = None
        if self.config.run.procedure.moment_head:
            _, found, _ = self._evaluate(number, self.shared)
            sums = read_sums(found, len(self.targets))
        self.record.document["chosen"] = chosen = self._build_chooser(number).finish(self.shared, sums)
        self.record.write()
        log.info(describe_choice(chosen))

    def _build_chooser(self, number: int) -> SecureChooser:
        return SecureChooser(self.config.run.procedure, self.sum_task, number, self.record.best_local)

    def _describe_start(self) -> dict[str, Any]:
        """Return what is stored before the prediction.

        This includes the scaling: a resumed run must not sum columns again, because two totals that differ by
        one site would reveal its moments.
        """
        config, scaling = self.config, self._find_scaling()
        return {
            "federation": self.sums.federation, "name": config.name, "kind": config.kind,
            "backbone": config.backbone, "settings": describe_settings(config),
            "keys": self.sums.keys_of_members, "fingerprints": self.sums.fingerprints_of_members,
            "targets": list(self.targets), "scaling": scaling.document() if scaling else None,
        }  # fmt: skip

    def _find_scaling(self) -> Scaling | None:
        """Sum how columns are standardized; None if they are not."""
        if not self.config.standardize:
            return None
        inputs = self.sums.introduction["inputs"]
        total = self.sums.sum(SCALES, 0, {}, 1 + 2 * (inputs + self.sizes["C"]))
        names = [*name_inputs(self.config.row_selection, inputs), *(f"'{name}'" for name in self.targets)]
        return Scaling.from_total(total.numbers, inputs, log.warning, names)

    def _predict(self) -> SumPrediction:
        size, finished = self.sizes["C"], count(1)
        log.info("Predicting from secure sums, about ten of them with two messages each.")

        def sum_round(head: Array) -> Total:
            total = self.sums.sum(ROUND, 0, {"head": head, **self.units}, 1 + size**2)
            log.info("Finished sum %d of the prediction.", next(finished))
            return total

        prediction = predict_from_sums(
            sum_round,
            lambda clients: self.sums.sum_exactly(clients, MOMENTS, 0, self.units, 2 + size + 3 * size**2),
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
        total = self.sum_task(EVALUATED, number, average, size)
        errors, rest = _split(total.numbers, training)
        tested, rest = _split(rest, test)
        totals, _ = _unflatten(rest, sums)
        measured = {name: _to_json(value) for name, value in (errors | tested).items()}
        return measured, totals, total.clients

    def sum_task(
        self, task: str, number: int, arrays: Mapping[str, Array], size: int, **metadata: int
    ) -> Total:
        """Sum `size` numbers of a task over clients, for what they share."""
        return self.sums.sum(task, number, {**arrays, **self.pooled}, size, **metadata)

    def _shape(self, kind: str, name: str) -> tuple[int, ...]:
        axes = reply_format(kind, self.config.run.procedure).arrays[name]
        return tuple(self.sizes[axis] for axis in axes)


def find_target(prediction: SumPrediction, procedure: Procedure) -> dict[Reference, Array]:
    """Return the Gram that a procedure trains to, by name; nothing where sums do not give it."""
    if procedure.local or 0 < procedure.corrected < 1:
        return {}
    if procedure.corrected == 0:
        return {"barycenter": prediction.barycenter}
    if procedure.centered:
        return {"within": prediction.within}
    return {"centralized": prediction.centralized}


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
