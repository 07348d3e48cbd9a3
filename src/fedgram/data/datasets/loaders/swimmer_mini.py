"""swimmer-mini: MuJoCo Swimmer actions from observations, embedded in the package.

5,000 transitions of Gymnasium's Swimmer-v5 under our own policy: tanh of a linear map of the observation,
with Gaussian noise of 0.1 on the actions. Its return is about 320. `tools/make_swimmer_mini.py` made the
file, which has this package's license, Apache-2.0.

Of five episodes of 1,000 transitions, the first four train, split over four clients by target projection, and
the fifth tests. Observations and actions keep their stored scale. The seed has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from fedgram.data.datasets.dataset import Dataset, Options, make_provenance
from fedgram.data.datasets.preprocessing import TABULAR_CLIENTS
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.splits import split_by_projection

FILE = "swimmer_mini.npz"
TARGETS = ("torque 1", "torque 2")
TRAIN_EPISODES = 4


def load(dataset: Dataset, files: Sequence[Path], options: Options) -> Problem:
    """Load 4,000 training and 1,000 test rows of 4 clients: inputs (N, 8) float32, targets (N, 2)."""
    with (resources("fedgram.data.datasets") / "embedded" / FILE).open("rb") as file, np.load(file) as arrays:
        observations, actions = arrays["observations"], arrays["actions"]
        returns = arrays["returns"].tolist()
    train, test = (
        Split(np.concatenate(observations[part]), np.concatenate(actions[part]))
        for part in (slice(TRAIN_EPISODES), slice(TRAIN_EPISODES, None))
    )
    provenance = make_provenance((), options, embedded=FILE, returns=returns)
    splits = split_by_projection(train, test, TABULAR_CLIENTS)
    return Problem(dataset.name, dataset.kind, *splits, TARGETS, provenance)
