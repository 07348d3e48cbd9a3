"""Where a stack goes on after it was stopped: one file, replaced as the last act of every round."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedgram._util.arrays import Array
from fedgram.nets.procedure import Procedure
from fedgram.nets.record import Run
from fedgram.runs.files import FORGET, read_arrays, read_metadata, write_arrays
from fedgram.runs.manifest import Setup, digest


@dataclass(frozen=True)
class Checkpoint:
    """The stack of these runs after a round."""

    path: Path
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, folder: Path, setups: Sequence[Setup]) -> Checkpoint:
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
