"""Data frames and masked arrays in the place of plain ones."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedgram import InputError, Moments
from fedgram.data.problem import Problem

RNG = np.random.default_rng(0)
NORTH = pd.DataFrame(RNG.normal([0, 10], 1, (20, 2)), columns=["u", "v"])
SOUTH = pd.DataFrame(RNG.normal([10, 0], 1, (30, 2)), columns=["v", "u"])
SITES = {"north": NORTH, "south": SOUTH}


@pytest.mark.parametrize("names", [(), ("u", "v"), ("v", "u")])
def test_columns_are_taken_by_name(names):
    moments, order = Moments.from_arrays(SITES, target_names=names), list(names or ("u", "v"))
    assert list(moments.targets) == order
    np.testing.assert_allclose(moments.mean, [SITES[name][order].mean() for name in moments.clients])
    problem = Problem.from_arrays(SITES, SITES, target_names=names)
    assert list(problem.target_names) == order
    np.testing.assert_array_equal(problem.train["south"].inputs, SOUTH[["u", "v"]])
    np.testing.assert_array_equal(problem.train["south"].targets, SOUTH[order])


def test_what_has_no_names_is_in_order():
    plain = {"north": NORTH.to_numpy(), "south": pd.DataFrame(SOUTH[["u", "v"]].to_numpy())}
    given = Moments.from_arrays(plain, target_names=["u", "v"])
    np.testing.assert_array_equal(given.covariance, Moments.from_arrays(SITES).covariance)


def test_columns_of_pyarrow_tables_are_taken_by_name():
    tables = {name: pa.Table.from_pandas(frame) for name, frame in SITES.items()}
    means = (Moments.from_arrays(sites).mean for sites in (tables, SITES))
    np.testing.assert_allclose(*means, rtol=1e-14)  # rows or columns are next to each other in memory


@pytest.mark.parametrize(("names", "client"), [((), "south"), (("u", "v"), "south"), (("a", "b"), "north")])
def test_other_columns_are_refused(names, client):
    others = {"north": NORTH, "south": SOUTH.rename(columns={"v": "w"})}
    with pytest.raises(
        InputError, match=f"targets of client '{client}' have columns .* instead of"
    ) as caught:
        Moments.from_arrays(others, target_names=names)
    assert (caught.value.client, caught.value.field) == (client, "targets")


def test_masked_values_are_refused_and_masks_of_nothing_are_not():
    masked, whole = (np.ma.masked_less(NORTH.to_numpy(), limit) for limit in (0, -99))
    words = "has masked values. Drop their rows or fill them first"
    with pytest.raises(InputError, match=f"The target array of client 'a' {words}"):
        Moments.from_arrays({"a": masked, "b": whole})
    with pytest.raises(InputError, match="The inputs of client 'b' have masked values"):
        Problem.from_arrays({"a": whole, "b": masked}, {"a": whole, "b": whole})
    np.testing.assert_array_equal(Moments.from_arrays([whole]).mean[0], NORTH.to_numpy().mean(axis=0))
