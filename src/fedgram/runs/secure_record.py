"""Store a run with secure sums: `secure.json` and its last averages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json
from fedgram.runs.expectation import SYMBOLS
from fedgram.runs.joining import ALONE_MSE
from fedgram.runs.manifest import unreadable_run
from fedgram.runs.procedure import Procedure
from fedgram.runs.tensor_files import read_arrays, write_arrays, write_document
from fedgram.theory.geometry import psd
from fedgram.theory.penalty import Penalty
from fedgram.theory.pooled import Pooled
from fedgram.theory.sum_prediction import SumPrediction

FORMAT = "fedgram-secure/1"
DOCUMENT = "secure.json"

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SecureRecord:
    """The document of a secure run; `docs/interchange.md` has its keys."""

    folder: Path
    document: dict[str, Any]

    @classmethod
    def load(cls, folder: Path) -> SecureRecord | None:
        """Read a stored run; None if there is none."""
        path = folder / DOCUMENT
        if not path.exists():
            return None
        document = read_json(path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(
                f"'{path}' is not a secure run of format '{FORMAT}'. Delete it.", field=str(path)
            )
        record = cls(folder, document)
        try:
            _ = record.describe(), record.complete, record.sentences  # what every command reads
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise unreadable_run(path, error) from None
        return record

    @classmethod
    def create(cls, folder: Path, described: Mapping[str, Any]) -> SecureRecord:
        """Store the start of a run, before its prediction.

        `described` has the keys 'federation', 'name', 'kind', 'backbone', 'settings', 'keys', 'fingerprints',
        'targets' and 'scaling'.
        """
        record = cls(folder, {"format": FORMAT, **described, "rounds": []})
        record.write()
        return record

    def add_prediction(self, prediction: SumPrediction) -> None:
        """Store the prediction."""
        self.document.update(describe_prediction(prediction))
        self.write()

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if settings are not those of the run."""
        stored = self.document["settings"]
        if other := [name for name in settings if settings[name] != stored.get(name)]:
            raise InputError(
                f"The secure run in '{self.folder}' has other settings: {', '.join(other)}. Choose another "
                "'out'.",
                field="out",
            )

    @property
    def has_prediction(self) -> bool:
        """Whether the run got as far as its prediction."""
        return self.number > 0 or "gap" in self.document

    @property
    def number(self) -> int:
        """Number of finished rounds."""
        return len(self.document["rounds"])

    def describe(self) -> dict[str, Any]:
        """Return what identifies the run: dataset, kind of data, backbone, procedure and seed."""
        names, settings = ("name", "kind", "backbone"), self.document["settings"]
        run = {name: settings[name] for name in ("procedure", "seed")}
        return {name: self.document[name] for name in names} | run

    @property
    def procedure(self) -> Procedure:
        """Procedure of the run."""
        return Procedure.parse(self.document["settings"]["procedure"])

    @property
    def complete(self) -> bool:
        """Whether all rounds are finished, and models are chosen if the procedure has a choice."""
        procedure = self.procedure
        has_choice = procedure.needs_validation or procedure.trains_alone
        is_chosen = not has_choice or "chosen" in self.document
        return self.number == self.document["settings"]["rounds"] and is_chosen

    @property
    def best_local(self) -> int:
        """Round in which the models trained alone had the least validation error; 0 before the first."""
        errors = {
            each["round"]: each["local_error"]
            for each in self.document["rounds"]
            if each.get("local_error") is not None
        }
        return min(errors, key=lambda number: (errors[number], number), default=0)

    @property
    def prediction(self) -> SumPrediction:
        """The stored prediction."""
        given = self.document
        return SumPrediction(
            clients=tuple(given["clients"]),
            count=given["rows"],
            pooled=Pooled(*(np.array(given[f"pooled_{part}"]) for part in ("mean", "within", "between"))),
            penalty=Penalty(**given["penalty"]),
            barycenter=np.array(given["barycenter"]["gram"]),
            arithmetic=np.array(given["arithmetic"]),
            active=given["active"],
            residual=given["barycenter"]["residual"],
            rounds=given["barycenter"]["rounds"],
        )

    @property
    def averages(self) -> dict[str, Array]:
        """Averaged arrays of the last round."""
        return read_arrays(self._path(self.number))

    @property
    def sentences(self) -> list[str]:
        """What was predicted and measured."""
        if not self.has_prediction:
            return ["Stopped before the prediction from secure sums. The same command resumes the run."]
        gap, last = self.document["gap"], (self.document["rounds"] or [None])[-1]
        text = [
            f"Predicted from totals over {len(self.document['clients'])} clients: federated averaging ends "
            f"{gap['relative']:.1%} away from centralized training."
        ]
        if last is not None:
            if reason := self.procedure.without_limit:
                text.append(f"No limit of averaged heads applies: {reason}.")
            for target, error in () if reason else last["error"].items():
                text.append(
                    f"Relative distance of the head's Gram to {SYMBOLS[target]} after round {self.number}: "
                    f"{error:.1e}."
                )
        chosen = self.document.get("chosen", {})
        if (mse := chosen.get("test_mse")) is not None:
            alone = chosen.get(ALONE_MSE)
            networks = "" if alone is None else f"; of models that each site trained alone: {alone:.3g}"
            text.append(f"Mean squared error of the chosen models on all test rows: {mse:.3g}{networks}.")
        return text

    def add_round(self, line: Mapping[str, Any], averages: Mapping[str, Array]) -> None:
        """Store a round; the arrays of the round before are deleted last, so that a crash loses nothing."""
        before = self._path(self.number)
        self.document["rounds"].append(dict(line))
        write_arrays(self._path(self.number), averages)
        self.write()
        before.unlink(missing_ok=True)

    def write(self) -> None:
        """Write the document."""
        write_document(self.folder / DOCUMENT, self.document)

    def _path(self, number: int) -> Path:
        return self.folder / f"secure-round-{number:02d}.safetensors"


def find_secure_records(root: Path) -> list[SecureRecord]:
    """Read all runs with secure sums below a folder; log a warning for a file that is not readable."""
    found = []
    for path in sorted(root.rglob(DOCUMENT)):
        try:
            found.append(SecureRecord.load(path.parent))
        except InputError as error:  # one bad file must not hide other runs
            LOG.warning(error.message)
    return [record for record in found if record is not None]


def describe_prediction(prediction: SumPrediction) -> dict[str, Any]:
    """Return the prediction and its explanation as a JSON object."""
    pooled, terms = prediction.pooled, prediction.terms
    return {
        "clients": list(prediction.clients),
        "rows": prediction.count,
        "active": prediction.active,
        "penalty": asdict(prediction.penalty),
        "pooled_mean": pooled.mean.tolist(),
        "pooled_within": pooled.within.tolist(),
        "pooled_between": pooled.between.tolist(),
        "pooled_covariance": pooled.covariance.tolist(),
        "barycenter": {
            "gram": prediction.barycenter.tolist(),
            "residual": prediction.residual,
            "rounds": prediction.rounds,
        },
        "arithmetic": prediction.arithmetic.tolist(),
        "within": prediction.within.tolist(),
        "centralized": prediction.centralized.tolist(),
        "gap": {
            "relative": prediction.relative_gap,
            **{name: float(psd.trace(term)) for name, term in terms.items()},
        },
        "terms": {name: term.tolist() for name, term in terms.items()},
        "notes": list(prediction.notes),
    }
