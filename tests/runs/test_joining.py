"""What joining changes: errors of both models on the same test rows."""

import numpy as np
import pytest

from fedgram.runs.joining import JOINING, Joining, format_change, measure_joining

RNG = np.random.default_rng(0)


def sites(rows, noise_joined, noise_alone):
    targets = [RNG.standard_normal((each, 2)) for each in rows]
    joined, alone = (
        [y + scale * RNG.standard_normal(y.shape) for y, scale in zip(targets, noise, strict=True)]
        for noise in (noise_joined, noise_alone)
    )
    return joined, alone, targets


def chosen(joined, alone, targets):
    """What the account of a run has, as JSON reads it."""
    errors = [((f - y) ** 2).mean() if len(y) else np.nan for f, y in zip(joined, targets, strict=True)]
    measured = {"test_mse": np.array(errors)} | measure_joining(joined, alone, targets)
    return {
        name: [None if np.isnan(each) else each for each in values.tolist()]
        for name, values in measured.items()
    }


def test_gain_loss_and_neither_are_told_apart():
    found = chosen(*sites([200, 200, 200, 4, 0], [1, 2, 1, 1, 1], [2, 1, 1, 2, 1]))
    joining = Joining.from_chosen(found, list("abcde"), [200, 200, 200, 4, 0])
    assert joining.is_compared.tolist() == [True, True, True, True, False]
    assert "the test rows of 4 sites" in joining.describe()
    counted = "clear gain at 1, clear loss at 1, no clear difference at 1, too few test rows at 1."
    assert counted in joining.describe()
    low, high = joining.low[0], joining.high[0]
    assert low < joining.joined[0] / joining.alone[0] - 1 < high < -0.5
    assert f"interval of the change: {format_change(low)} to" in joining.describe_site(0)
    assert "on 4 test rows of 'd'" in joining.describe_site(3)
    assert "too few rows to tell" in joining.describe_site(3)
    last = joining.document()[-1]
    assert last == {"site": "e", "test_rows": 0, "test_mse": None} | dict.fromkeys(JOINING)


def test_rows_in_order_of_time_have_wider_intervals():
    """Errors of neighbors are equal, so eight blocks say less than 160 rows."""
    targets = [np.zeros((160, 1))]
    joined, alone = ([np.repeat(RNG.standard_normal(16), 10)[:, None]] for _ in range(2))
    widths = [
        np.ptp(
            [measure_joining(joined, alone, targets, in_time_order=is_sorted)[end][0] for end in JOINING[1:]]
        )
        for is_sorted in (False, True)
    ]
    assert widths[1] > 1.2 * widths[0]


def test_totals_weight_sites_by_their_test_rows():
    joined, alone, targets = sites([30, 90], [1, 1], [1, 3])
    joining = Joining.from_chosen(chosen(joined, alone, targets), ["a", "b"], [30, 90])
    before, after = (
        np.mean((np.concatenate(each) - np.concatenate(targets)) ** 2) for each in (alone, joined)
    )
    assert f"from {before:.3g} to {after:.3g}:" in joining.describe()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_diverged_is_not_compared(bad):
    joined, alone, targets = sites([10, 10], [1, 1], [1, 1])
    alone[1][3] = bad
    found = measure_joining(joined, alone, targets)
    assert all(np.isfinite(values[0]) and np.isnan(values[1]) for values in found.values())


def test_runs_without_a_comparison_have_none():
    assert Joining.from_chosen({"test_mse": [1.0]}, ["a"], [5]) is None
    nothing = {name: [None] for name in ("test_mse", *JOINING)}
    assert Joining.from_chosen(nothing, ["a"], [5]) is None
