"""swimmer-mini: the actions of a small MuJoCo swimmer from its observations, embedded in the package.

5,000 transitions of Gymnasium's Swimmer-v5 that we rolled out with a policy that we trained ourselves: tanh
of a linear map of the observation, with Gaussian noise of 0.1 on the actions. Its return is about 320;
`tools/make_swimmer_mini.py` is the script, with its seed and what it took. The file is our own work, under
this package's licence, Apache-2.0.

The first four episodes of 1,000 transitions train, split over four clients by target projection; the fifth
tests. Observations and actions keep their stored scale, as the paper's MuJoCo datasets do. The seed plays no
part.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from fedgram.data.datasets.dataset import Dataset, Options, provenance
from fedgram.data.datasets.preprocessing import refuse_larger, split_by_projection
from fedgram.data.problem import Problem, Split

NAME = "swimmer-mini"
FILE = "swimmer_mini.npz"
TARGETS = ("torque 1", "torque 2")
TRAIN_EPISODES = 4


def load(files: Sequence[Path], options: Options) -> Problem:
    """4,000 training and 1,000 test rows of 4 clients: inputs (N, 8) float32, targets (N, 2)."""
    refuse_larger(NAME, options)
    with (resources("fedgram.data.datasets") / "embedded" / FILE).open("rb") as file, np.load(file) as arrays:
        observations, actions = arrays["observations"], arrays["actions"].astype(np.float64)
        returns = arrays["returns"].tolist()
    train, test = (
        Split(np.concatenate(observations[part]), np.concatenate(actions[part]))
        for part in (slice(TRAIN_EPISODES), slice(TRAIN_EPISODES, None))
    )
    made = provenance((), options, embedded=FILE, returns=returns)
    return Problem(NAME, "GENERATED", *split_by_projection(train, test), TARGETS, made)


DATASETS = (
    Dataset(
        name=NAME,
        kind="GENERATED",
        title="Swimmer transitions of our own",
        licence="Apache-2.0, part of fedgram",
        citation="none: made by tools/make_swimmer_mini.py",
        published="part of fedgram",
        find=lambda folder, options: (),
        load=load,
    ),
)
