"""Warnings about what makes a gap unreliable."""

import numpy as np
import pytest

from fedgram import Moments, explain, predict
from fedgram.display import caveats
from fedgram.display.analysis import analyze_gap


def warnings(count, client_weights=None):
    covariance = np.linspace(1, 2, len(count))[:, None, None]
    moments = Moments(count, np.zeros((len(count), 1)), covariance, client_weights=client_weights)
    return caveats.warnings(analyze_gap(explain(predict(moments))))


@pytest.mark.parametrize(
    ("count", "weights", "said"),
    [
        ([300, 50, 50], None, []),  # three quarters
        (
            [301, 50, 49],
            None,
            ["'client 1' has 75% of all rows. Check that this is right."],
        ),
        ([50, 450], None, ["'client 2' has 90% of all rows. Check that this is right."]),
        ([50, 450], [1.0, 1.0], []),
        (
            [50, 50],
            [9.0, 1.0],
            ["'client 1' has 90% of all weight. Check that this is right."],
        ),
    ],
)
def test_a_client_with_most_rows_is_named(count, weights, said):
    assert warnings(count, weights) == said
