"""Partitions of flwr-datasets become problems and sites."""

import doctest
from types import SimpleNamespace

import numpy as np
import pytest

from fedgram._util.errors import InputError
from fedgram.flower import partitions
from fedgram.flower.partitions import problem_from_partitions, write_sites_file
from fedgram.flower.sites_file import SitesConfig, read_site

COLUMNS = {"inputs": ["a", "b"], "targets": ["y1", "y2"]}


def table(rows: int) -> dict:
    rng = np.random.default_rng(0)
    names = ("a", "b", "y1", "y2")
    return {name: rng.standard_normal(rows) for name in names} | {
        "town": np.repeat(["x", "z"], rows // 2).tolist()
    }


class Halves:
    """A partitioner of two clients."""

    num_partitions = 2

    def load_partition(self, number):
        return {name: values[20 * number : 20 * number + 20] for name, values in table(40).items()}


def test_example_runs():
    assert doctest.testmod(partitions).failed == 0


def test_partitions_are_clients():
    problem = problem_from_partitions(Halves(), **COLUMNS, test_fraction=0.25)
    assert problem.clients == ("partition 1", "partition 2")
    assert [len(split) for split in problem.test.values()] == [5, 5]
    whole = np.stack([table(40)[name] for name in ("y1", "y2")], axis=1)
    found = np.concatenate([problem.train["partition 1"].targets, problem.test["partition 1"].targets])
    np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(whole[:20], axis=0))


def test_natural_names_are_kept():
    partitioner = SimpleNamespace(
        num_partitions=2, load_partition=Halves().load_partition, partition_id_to_natural_id={0: "oslo", 1: 7}
    )
    assert problem_from_partitions(partitioner, **COLUMNS).clients == ("oslo", "7")


@pytest.mark.parametrize(
    ("columns", "words"),
    [({"inputs": "c"}, "No column 'c' in the dataset. Columns: 'a', "), ({"inputs": "town"}, "not a number")],
)
def test_bad_columns_are_named(columns, words):
    with pytest.raises(InputError, match=words):
        problem_from_partitions(Halves(), **COLUMNS | columns)


@pytest.mark.slow  # importing Hugging Face's datasets takes seconds
@pytest.mark.filterwarnings("default")
def test_partitioners_of_flower_are_a_source(tmp_path):
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    natural = partitioners.NaturalIdPartitioner(partition_by="town")
    iid = partitioners.IidPartitioner(num_partitions=4)
    for partitioner, clients in ((natural, ("x", "z")), (iid, tuple(f"partition {m}" for m in range(1, 5)))):
        partitioner.dataset = datasets.Dataset.from_dict(table(80))
        problem = problem_from_partitions(partitioner, **COLUMNS)
        assert problem.clients == clients
        path = write_sites_file(partitioner, tmp_path / clients[0], **COLUMNS, rounds=2, lambda_h=0.1)
        sites = SitesConfig.read(path)
        assert sites.run_config["lambda-h"] == 0.1
        for name in clients:
            site = read_site(sites.node_config(name), sites.run_config)
            np.testing.assert_array_equal(site.train.inputs, problem.train[name].inputs)
            np.testing.assert_allclose(site.test.targets, problem.test[name].targets)
