"""Runs on disk: `<root>/<dataset>/<backbone>/<procedure>/seed-<n>/`, and checkpoints of stacks.

A run folder has a manifest, target moments, one file of arrays per round, and the last models. The manifest
has the checksums of the other files and its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import InputError
from fedgram._util.files import hash_file, read_json
from fedgram._util.text import escape_text, pluralize
from fedgram.runs.manifest import (
    FEDERATION,
    FORMAT,
    VALIDATION_ROWS,
    Account,
    Setup,
    digest,
    unreadable_run,
)
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Round, Run
from fedgram.runs.tensor_files import (
    CHECKSUM,
    DELETE,
    RESTORE,
    read_arrays,
    read_metadata,
    write_arrays,
    write_document,
)
from fedgram.theory.moments import Moments

MANIFEST, MOMENTS, MODEL = "manifest.json", "moments.json", "model.safetensors"
KEYS_WITHOUT_CHECKSUM = {"format", "run", "setup", "account"}
"""Keys of manifests that fedgram 0.1 wrote, which have no checksum."""

OWN_WEIGHTS = (
    " A module starts from its current weights: seed them, or pass a function that returns a new module."
)


@dataclass(frozen=True)
class Runs(DisplayMethods):
    """All runs under a folder; iterate to read them.

    Parameters
    ----------
    root : path
        The folder that `train(..., folder=root)` wrote to, or any folder above runs.

    Examples
    --------
    >>> from fedgram import Runs
    >>> list(Runs("an-empty-folder"))
    []
    """

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # accept text

    def __repr__(self) -> str:
        return f"Runs('{escape_text(str(self.root))}')"

    def __iter__(self) -> Iterator[StoredRun]:
        for path in sorted(self.root.rglob(MANIFEST)):
            if run := read_run(path.parent):
                yield run

    def require(self) -> list[StoredRun]:
        """Read all runs; raise InputError if there are none."""
        if not (runs := list(self)):
            if lost := find_lost_manifests(self.root):
                raise InputError(f"'{lost[0]}' is missing. {RESTORE}.", field=str(lost[0].parent))
            raise InputError(
                f"No runs found in '{self.root}'. Train some with 'fedgram train'.", field="root"
            )
        return runs

    def folder(self, data: str, backbone: str, run: Run) -> Path:
        """Return the folder of a run by the names of its dataset and backbone."""
        return self.root / safe_name(data) / safe_name(backbone) / run.name

    def folder_of(self, setup: Setup) -> Path:
        """Return the folder of a run."""
        return self.folder(setup.data.name, setup.backbone, setup.run)

    def setting_folder(self, setup: Setup) -> Path:
        """Return the folder of all runs with the same dataset and backbone."""
        return self.root / safe_name(setup.data.name) / safe_name(setup.backbone)

    def load(self, data: str, backbone: str, run: Run) -> StoredRun | None:
        """Read a run by the names of its dataset and backbone; None if it is missing."""
        folder = self.folder(data, backbone, run)
        has_manifest = (folder / MANIFEST).exists()
        return StoredRun.from_document(folder, _read_manifest(folder)) if has_manifest else None

    def find(self, setup: Setup) -> StoredRun | None:
        """Read a run; None if it is missing. Raise InputError if another setup made it."""
        stored = self.load(setup.data.name, setup.backbone, setup.run)
        if stored is not None and (different := stored.setup.differences(setup)):
            names = [each.split(" ")[0] for each in different]
            raise InputError(
                f"'{stored.folder}' was made with other settings: {'; '.join(different)}. Choose another "
                f"folder, or delete that one.{OWN_WEIGHTS if names == ['network'] else ''}",
                field=names[0],
            )
        return stored


@dataclass(frozen=True)
class StoredRun(DisplayMethods):
    """One run in its folder.

    Parameters
    ----------
    folder : Path
        Contains the manifest, target moments, a file for each round, and the clients' last models.
    setup : Setup
        Procedure, seed, configuration, network and data.
    account : Account
        Finished rounds, time, device, versions.
    checksums : Mapping
        SHA-256 by file name, from the manifest; empty for runs of fedgram 0.1.

    Examples
    --------
    >>> import tempfile, numpy as np, fedgram
    >>> x = np.random.default_rng(0).standard_normal((2, 20, 3))
    >>> problem = fedgram.Problem.from_arrays(list(x), [x[0, :, :2], 2 * x[1, :, :2]])
    >>> config = fedgram.TrainConfig(rounds=2, epochs=1, features=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (run,) = fedgram.train(problem, "resmlp-small", "ordinary", [0], config, folder=folder)
    ...     last = run.rounds()[-1]
    >>> run.complete, last.number, last.head.shape, last.returned_heads.shape
    (True, 2, (2, 4), (2, 2, 4))
    >>> run
    StoredRun('ordinary/seed-0', 2 of 2 rounds)
    """

    folder: Path
    setup: Setup
    account: Account
    checksums: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        rounds = pluralize(self.setup.settings.rounds, "round")
        return f"StoredRun('{escape_text(self.setup.run.name, 80)}', {self.account.rounds} of {rounds})"

    @classmethod
    def from_document(cls, folder: Path, document: Mapping[str, Any]) -> StoredRun:
        """Read a run from its manifest."""
        try:
            setup = Setup.from_document(document["setup"])
            checksums = dict(document.get("files", {}))
            return cls(folder, setup, Account.from_document(document["account"]), checksums)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise unreadable_run(folder / MANIFEST, error) from None

    @property
    def complete(self) -> bool:
        """Whether all rounds are stored."""
        return self.account.rounds == self.setup.settings.rounds

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to train: the run is complete, or it was stopped."""
        return self.complete or self.account.stopped is not None

    @property
    def awaits_choice(self) -> bool:
        """Whether all rounds are stored, but a federation has not chosen models on validation rows yet."""
        has_choice = bool(self.setup.data.provenance.get(VALIDATION_ROWS))
        return self.complete and self.account.stopped is None and has_choice and not self.account.chosen

    @property
    def has_result(self) -> bool:
        """Whether all rounds are stored and models are chosen, if they are to be."""
        return self.complete and not self.awaits_choice

    @property
    def has_model(self) -> bool:
        """Whether the clients' last models are stored."""
        return (self.folder / MODEL).exists()

    @property
    def lacks_model(self) -> bool:
        """Whether the clients' last models were stored, but the file is missing."""
        return MODEL in self.checksums and not self.has_model

    @property
    def moments(self) -> Moments:
        """Moments of the clients' training targets."""
        path = self.folder / MOMENTS
        expected = self.checksums.get(MOMENTS)
        if expected is not None and path.exists() and hash_file(path) != expected:
            raise InputError(f"'{path}' is damaged: its checksum is wrong. {RESTORE}.", field=str(path))
        return Moments.load(path)

    @property
    def initial(self) -> tuple[Array, Array]:
        """Shared head (C, P) and bias (C,) before the first round."""
        with self._read(self.round_path(0)) as arrays:
            return arrays["head"], arrays["bias"]

    def rounds(self) -> list[Round]:
        """Read the records of all finished rounds."""
        return [self._read_round(number) for number in range(1, self.account.rounds + 1)]

    def _read_round(self, number: int) -> Round:
        with self._read(self.round_path(number)) as arrays:
            return Round(number, **arrays)

    @contextmanager
    def _read(self, path: Path) -> Iterator[dict[str, Array]]:
        """Read the arrays of a file; raise InputError if the caller finds others than it needs."""
        try:
            yield read_arrays(path, checksum=self.checksums.get(path.name))
        except (KeyError, TypeError):
            raise InputError(
                f"'{path}' has other arrays than its name says. {RESTORE}.", field="run"
            ) from None

    def model(self) -> dict[str, Array]:
        """Read parameters and buffers of the clients' last models by name, each with a leading axis M."""
        self.require_model()
        with self._read(self.folder / MODEL) as arrays:
            _ = arrays["head.weight"]  # every model has it
            return arrays

    def require_model(self) -> None:
        """Raise InputError if the clients' last models are missing."""
        if self.has_model:
            return
        if self.lacks_model:
            raise InputError(f"'{self.folder / MODEL}' is missing. {RESTORE}.", field="run")
        if self.account.stopped is not None:
            reason = f"it was stopped because {self.account.stopped}."
        elif not self.complete:
            rounds = pluralize(self.setup.settings.rounds, "round")
            reason = f"{self.account.rounds} of {rounds} are finished. Train the rest first."
        elif self.setup.data.provenance.get("trained by") == FEDERATION:
            reason = "each site keeps its own in its private folder (model.safetensors)."
        else:
            reason = "they were not saved. Train again in another folder, without --no-keep-models."
        raise InputError(f"The run in '{self.folder}' has no networks: {reason}", field="run")

    def round_path(self, number: int) -> Path:
        """Return the file of a round; round 0 is the initial state."""
        return self.folder / f"round-{number:02d}.safetensors"

    def begin(self, moments: Moments, head: Array, bias: Array) -> None:
        """Write moments, initial head (C, P) and bias (C,), and the manifest."""
        write_document(self.folder / MOMENTS, moments.document())
        write_arrays(self.round_path(0), {"head": head, "bias": bias})
        self.save()  # last: a folder with a manifest is complete

    def record(self, round: Round) -> None:
        """Write the record of a round."""
        values = {each.name: getattr(round, each.name) for each in fields(Round) if each.name != "number"}
        write_arrays(self.round_path(round.number), values)

    def save_model(self, model: Mapping[str, Array]) -> None:
        """Write the clients' last models: arrays (M, ...) by name."""
        write_arrays(self.folder / MODEL, model)

    def save(self) -> None:
        """Write the manifest, with the checksums of all files that it describes."""
        document: dict[str, Any] = {"format": FORMAT, "run": self.setup.run.name}
        parts = {"setup": self.setup.document(), "account": self.account.document()}
        document |= parts | {"files": self._collect_checksums()}
        write_document(self.folder / MANIFEST, document | {CHECKSUM: hash_document(document)})

    def _collect_checksums(self) -> dict[str, str]:
        paths = [*(self.round_path(number) for number in range(self.account.rounds + 1)), self.folder / MODEL]
        arrays = {path.name: read_metadata(path).get(CHECKSUM) for path in paths if path.exists()}
        moments = {MOMENTS: hash_file(self.folder / MOMENTS)}
        return moments | {name: checksum for name, checksum in arrays.items() if checksum is not None}


@dataclass(frozen=True)
class Checkpoint:
    """File with the state of a stack of runs after a round."""

    path: Path
    runs: tuple[Run, ...]

    @classmethod
    def from_setups(cls, folder: Path, setups: Sequence[Setup]) -> Checkpoint:
        """Name the checkpoint of a stack by a hash of its runs, their order and their settings."""
        return cls(folder / f"stack-{digest(setups)}.safetensors", tuple(setup.run for setup in setups))

    def write(self, state: Mapping[str, Array]) -> None:
        """Replace the file by a new state."""
        runs = [{"procedure": asdict(run.procedure), "seed": run.seed} for run in self.runs]
        write_arrays(self.path, state, {"runs": json.dumps(runs)})

    def read(self) -> dict[str, Array]:
        """Read the state."""
        return read_arrays(self.path, DELETE)

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def find_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Find all checkpoints in the folder of a setting."""
    for path in sorted(folder.glob("stack-*.safetensors")):
        documents = json.loads(read_metadata(path, DELETE).get("runs", "[]"))
        runs = [Run(Procedure(**each["procedure"]), each["seed"]) for each in documents]
        yield Checkpoint(path, tuple(runs))


def read_run(folder: Path) -> StoredRun | None:
    """Read the run in a folder with a manifest; None if another program wrote the manifest."""
    document = _read_manifest(folder)
    is_ours = isinstance(document, dict) and document.get("format") == FORMAT
    return StoredRun.from_document(folder, document) if is_ours else None


def find_lost_manifests(root: Path) -> list[Path]:
    """Find manifests that are missing from folders of runs, which have a round 0 unlike those of sites."""
    manifests = [path.with_name(MANIFEST) for path in sorted(root.rglob("round-00.safetensors"))]
    return [path for path in manifests if not path.exists()]


def safe_name(name: str) -> str:
    """Replace characters that some file systems reject."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "unnamed"


def hash_document(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON document, without the checksum that it may contain."""
    content = {key: value for key, value in document.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> Any:
    try:
        document = read_json(folder / MANIFEST)
    except InputError as error:
        raise InputError(f"{error.message} {RESTORE}.", field=str(folder)) from None
    is_run = isinstance(document, dict) and document.get("format") == FORMAT
    has_checksum = is_run and not document.keys() <= KEYS_WITHOUT_CHECKSUM
    if has_checksum and document.get(CHECKSUM) != hash_document(document):
        path = folder / MANIFEST
        raise InputError(f"'{path}' is damaged: its checksum is wrong. {RESTORE}.", field=str(folder))
    return document
