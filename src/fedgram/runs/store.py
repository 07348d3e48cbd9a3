"""A folder of runs: `<root>/<dataset>/<backbone>/<procedure>/seed-<n>/`, each read and written on its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.files import read_json
from fedgram._util.text import pluralize
from fedgram.runs.manifest import FEDERATION, FORMAT, Account, Setup, digest
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round, Run
from fedgram.runs.tensor_files import (
    DAMAGED,
    FORGET,
    read_arrays,
    read_metadata,
    write_arrays,
    write_document,
)
from fedgram.theory.moments import Moments

MANIFEST, MOMENTS, MODEL = "manifest.json", "moments.json", "model.safetensors"

OWN_WEIGHTS = (
    " A module starts from the weights that it has: seed them, or give a function that draws the module."
)


@dataclass(frozen=True)
class StoredRun:
    """One run as it lies in its folder: manifest, target moments, a file for each round, last models."""

    folder: Path
    setup: Setup
    account: Account

    @property
    def complete(self) -> bool:
        """Whether all rounds are there."""
        return self.account.rounds == self.setup.settings.rounds

    @property
    def over(self) -> bool:
        """Whether nothing is left to train: all rounds are there, or the run was given up."""
        return self.complete or self.account.stopped is not None

    @property
    def moments(self) -> Moments:
        """Training-target moments of the clients."""
        return Moments.load(self.folder / MOMENTS)

    @property
    def initial(self) -> tuple[Array, Array]:
        """The shared head (C, P) and bias (C,) before the first round."""
        with self._whole(self.round_path(0)) as arrays:
            return arrays["head"], arrays["bias"]

    def rounds(self) -> list[Round]:
        """What was recorded in every finished round."""
        return [self._round(number) for number in range(1, self.account.rounds + 1)]

    def _round(self, number: int) -> Round:
        with self._whole(self.round_path(number)) as arrays:
            return Round(number, **arrays)

    @contextmanager
    def _whole(self, path: Path) -> Iterator[dict[str, Array]]:
        """The arrays of a file of this run; one sentence if they are not those that are needed."""
        try:
            yield read_arrays(path)
        except (KeyError, TypeError):
            raise InputError(f"'{path}' is of another kind than its name; {DAMAGED}.", field="run") from None

    @property
    def has_model(self) -> bool:
        """Whether the clients' last models are there."""
        return (self.folder / MODEL).exists()

    def model(self) -> dict[str, Array]:
        """Parameters and buffers of the clients' last models by name, each with a leading client axis M."""
        self.require_model()
        with self._whole(self.folder / MODEL) as arrays:
            _ = arrays["head.weight"]  # which every network has
            return arrays

    def require_model(self) -> None:
        """Say why the clients' last models are not there, if they are not."""
        if not self.has_model:
            raise InputError(
                f"The run in '{self.folder}' has no networks: {self._without_model()}", field="run"
            )

    def _without_model(self) -> str:
        if self.account.stopped is not None:
            return f"it was given up, {self.account.stopped}."
        if not self.complete:
            done = f"{self.account.rounds} of {pluralize(self.setup.settings.rounds, 'round')} are finished"
            return f"{done}; train it to its end first."
        if self.setup.data.provenance.get("trained by") == FEDERATION:
            return "they are at the sites, each in its private folder (model.safetensors)."
        return "they were not kept; train it again in another folder, and keep them."

    def round_path(self, number: int) -> Path:
        """The file of a round; round 0 is the start."""
        return self.folder / f"round-{number:02d}.safetensors"

    def begin(self, moments: Moments, head: Array, bias: Array) -> None:
        """Write what is known before the first round: moments, initial head (C, P) and bias (C,)."""
        write_document(self.folder / MOMENTS, moments.document())
        write_arrays(self.round_path(0), {"head": head, "bias": bias})
        self.save()  # last: a folder with a manifest has all that a run begins with

    def record(self, round: Round) -> None:
        """Write what a round left."""
        values = {each.name: getattr(round, each.name) for each in fields(Round) if each.name != "number"}
        write_arrays(self.round_path(round.number), values)

    def keep_model(self, model: Mapping[str, Array]) -> None:
        """Write the clients' last models: arrays (M, ...) by name."""
        write_arrays(self.folder / MODEL, model)

    def save(self) -> None:
        """Write the manifest."""
        document = {"format": FORMAT, "run": self.setup.run.name}
        parts = {"setup": self.setup.document(), "account": self.account.document()}
        write_document(self.folder / MANIFEST, document | parts)


@dataclass(frozen=True)
class Runs:
    """All runs under a folder."""

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # a name will do

    def __iter__(self) -> Iterator[StoredRun]:
        for path in sorted(self.root.rglob(MANIFEST)):
            document = _manifest(path.parent)
            if isinstance(document, dict) and document.get("format") == FORMAT:
                yield _stored(path.parent, document)

    def require(self) -> list[StoredRun]:
        """All runs, or a sentence that there are none."""
        if not (found := list(self)):
            raise InputError(f"There are no runs in '{self.root}': 'fedgram train' makes some.", field="root")
        return found

    def place(self, data: str, backbone: str, run: Run) -> Path:
        """Where the run of a name lies."""
        return self.root / safe(data) / safe(backbone) / run.name

    def folder_of(self, setup: Setup) -> Path:
        """Where a run lies."""
        return self.place(setup.data.name, setup.backbone, setup.run)

    def setting_folder(self, setup: Setup) -> Path:
        """Where all runs of a dataset and backbone lie."""
        return self.root / safe(setup.data.name) / safe(setup.backbone)

    def named(self, data: str, backbone: str, run: Run) -> StoredRun | None:
        """The run of a name if it is there, whatever its settings."""
        folder = self.place(data, backbone, run)
        return _stored(folder, _manifest(folder)) if (folder / MANIFEST).exists() else None

    def find(self, setup: Setup) -> StoredRun | None:
        """The run if it is there; refuses one that was made by other settings."""
        folder = self.folder_of(setup)
        if not (folder / MANIFEST).exists():
            return None
        stored = _stored(folder, _manifest(folder))
        if different := stored.setup.differences(setup):
            fields = [each.split(" ")[0] for each in different]
            raise InputError(
                f"'{folder}' was made by other settings: {'; '.join(different)}. Choose another folder, or "
                f"delete that one.{OWN_WEIGHTS if fields == ['network'] else ''}",
                field=fields[0],
            )
        return stored


def _manifest(folder: Path) -> Any:
    try:
        return read_json(folder / MANIFEST)
    except InputError as error:
        raise InputError(f"{error.message[:-1]}; {DAMAGED}.", field=str(folder)) from None


def _stored(folder: Path, document: Mapping[str, Any]) -> StoredRun:
    try:
        setup, account = Setup.parse(document["setup"]), Account.parse(document["account"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"'{folder / MANIFEST}' is no manifest of a run that this version reads ({error}); use the "
            "version that wrote it, or delete its folder and train again.",
            field=str(folder),
        ) from None
    return StoredRun(folder, setup, account)


def safe(name: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "unnamed"


@dataclass(frozen=True)
class Checkpoint:
    """The stack of these runs after a round."""

    path: Path
    runs: tuple[Run, ...]

    @classmethod
    def for_setups(cls, folder: Path, setups: Sequence[Setup]) -> Checkpoint:
        """The checkpoint of a stack; its name holds the runs, their order and all settings."""
        return cls(folder / f"stack-{digest(setups)}.safetensors", tuple(setup.run for setup in setups))

    def write(self, state: Mapping[str, Array]) -> None:
        """Replace the file by the state after a round."""
        about = [{"procedure": asdict(run.procedure), "seed": run.seed} for run in self.runs]
        write_arrays(self.path, state, {"runs": json.dumps(about)})

    def read(self) -> dict[str, Array]:
        """The state that was written."""
        return read_arrays(self.path, FORGET)

    def remove(self) -> None:
        """Forget it."""
        self.path.unlink(missing_ok=True)


def checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """All checkpoints of a setting's folder."""
    for path in sorted(folder.glob("stack-*.safetensors")):
        about = json.loads(read_metadata(path, FORGET).get("runs", "[]"))
        runs = [Run(Procedure(**each["procedure"]), each["seed"]) for each in about]
        yield Checkpoint(path, tuple(runs))
