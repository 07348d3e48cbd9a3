"""The networks of a run on new rows."""

import numpy as np
import pytest

from fedgram import InputError
from fedgram.nets.procedure import BIAS_RULES
from fedgram.runs import Runs
from fedgram.train import predictions
from tests.small_runs import net, small_problem, trained

PROCEDURES = ["ordinary", "private", "solved+corrected+offset"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    trained(made, [*PROCEDURES, "centralized"], [0])
    return made


def errors(run):
    """Mean squares of each client's test errors, of those that have test rows."""
    test = {client: split for client, split in small_problem().test.items() if len(split)}
    found = predictions(run, {client: split.inputs for client, split in test.items()}, net)
    return [np.mean((found[client] - split.targets) ** 2) for client, split in test.items()]


def test_test_rows_are_predicted_as_they_were_in_training(folder):
    for run in Runs(folder):
        own = run.rounds()[-1].test_mse[:, BIAS_RULES.index(run.setup.procedure.bias)]
        if run.setup.procedure.centralized:
            assert np.average(errors(run), weights=[5, 3]) == pytest.approx(own[0], rel=1e-4)
        else:
            np.testing.assert_allclose(errors(run), own[:2], rtol=1e-4)


@pytest.mark.parametrize(
    ("client", "backbone", "words"),
    [
        ("site 9", net, "The run has no client 'site 9'; it has site 0, site 1, site 2"),
        ("site 0", "resmlp-small", "are not of this backbone for rows of shape .4,.; give the inputs"),
        ("site 0", None, "There is no backbone 'net'"),
    ],
)
def test_what_does_not_fit_is_said(folder, client, backbone, words):
    run = next(iter(Runs(folder)))
    with pytest.raises(InputError, match=words):
        predictions(run, {client: np.zeros((2, 4))}, backbone)


def test_networks_must_have_been_kept(tmp_path):
    (run,) = trained(tmp_path, ["ordinary"], [0], keep_models=False)
    with pytest.raises(InputError, match=r"Cannot read '.*model\.safetensors'"):
        predictions(run, {"site 0": np.zeros((2, 4))}, net)
