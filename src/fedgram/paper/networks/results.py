"""What every run of the network experiments found, small enough to be shipped.

One Parquet file for each setting, network, number of epochs and protocol. Reading needs neither torch nor
the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from fedgram._util.arrays import Array
from fedgram.data.problem import Kind
from fedgram.runs.procedure import Procedure


@dataclass(frozen=True)
class RunKey:
    """What tells one run of a scale from another."""

    setting: str
    dataset: str
    backbone: str
    procedure: Procedure
    seed: int
    epochs: int
    rounds: int
    larger: bool


@dataclass(frozen=True, eq=False)
class Result:
    """One run of T rounds, M clients and C targets, measured.

    setting is the paper's name, dataset what was trained on, which may be a stand-in of another `kind`;
    epochs E as trained. target names the Gram that the procedure ends at: 'barycenter', 'centralized' or
    'within'; these three are (C, C). gap_terms (3,): traces of the mean, covariance and averaging terms.
    grams (T + 1, C, C) of the shared head; returned_grams (T, M, C, C) of what was averaged; client_grams
    (M, C, C), φ of the clients' own covariances, and least_variance, the smallest eigenvalue of these.
    error e_F and direction_error d (T + 1,) by reference, and trajectory_error (T + 1,) to the exact
    recursion from the same start. delta (T,): mean distance of the returned heads from the selected ones;
    objective_gap (T, M): (L_m - L⋆_m) / L⋆_m, the correction included; shared_objective (T,): the clients'
    mean objective with the averaged head. train_mse and test_mse (T, 3) in the order of BIAS_RULES, NaN
    without test rows. train_rows and test_rows of all clients together. seconds: the run's share of the time
    that its stack of models_in_stack took.
    A centralized run has one client in returned_grams and objective_gap.
    """

    setting: str
    dataset: str
    kind: Kind
    backbone: str
    procedure: Procedure
    seed: int
    epochs: int
    scale: str
    larger: bool
    target: str
    barycenter: Array
    centralized: Array
    within: Array
    gap_terms: Array
    grams: Array
    returned_grams: Array
    client_grams: Array
    least_variance: float
    error: dict[str, Array]
    direction_error: dict[str, Array]
    trajectory_error: Array
    delta: Array
    objective_gap: Array
    shared_objective: Array
    train_mse: Array
    test_mse: Array
    train_rows: int
    test_rows: int
    seconds: float
    device: str
    hardware: str
    models_in_stack: int

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.delta)

    @property
    def key(self) -> RunKey:
        """What tells this run from the others of its scale."""
        return RunKey(
            self.setting, self.dataset, self.backbone, self.procedure,
            self.seed, self.epochs, self.rounds, self.larger,
        )  # fmt: skip

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU trained it."""
        return self.device.startswith("cuda")

    @property
    def target_error(self) -> Array:
        """e_F to the procedure's own target, (T + 1,)."""
        return self.error[self.target]


class Results(Sequence[Result]):
    """Results in a fixed order; `select` narrows them down."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._results = tuple(results)

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Result | Results:
        found = self._results[index]
        return found if isinstance(found, Result) else Results(found)

    def select(self, **wanted: Any) -> Results:
        """Those whose fields (or `rounds`) have these values; a procedure may be given in words.

        results.select(setting="hopper", procedure="proximal+corrected", epochs=4000)
        """
        if isinstance(words := wanted.get("procedure"), str):
            wanted["procedure"] = Procedure.parse(words)
        return Results(
            each for each in self if all(getattr(each, name) == value for name, value in wanted.items())
        )

    def merged(self, others: Iterable[Result]) -> Results:
        """These and others; where both have a run of the same scale and key, the other's."""
        return Results({(each.scale, each.key): each for each in (*self, *others)}.values())

    @classmethod
    def load(cls, folder: Path) -> Results:
        """All results that were saved to a folder; none where there is no folder."""
        from fedgram.paper.networks.files import load  # which reads what is defined here

        return cls(load(folder))

    def save(self, folder: Path) -> list[Path]:
        """Write these to a folder, a file for each setting and protocol, and return the files.

        Files of other settings and protocols stay; unchanged ones are not written again.
        """
        from fedgram.paper.networks.files import save

        return save(self, folder)
