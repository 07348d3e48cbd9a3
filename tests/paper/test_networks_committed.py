"""The results that come with the project: sound, small, and enough to draw every figure without a GPU."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedgram.display.plotting import render
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.studies.registry import FIGURES, figures_of
from fedgram.theory.geometry import psd

FOLDER = Path(__file__).parents[2] / "results"
SCALES = sorted(path.parent.name for path in FOLDER.glob("*/results"))
MOST = 20 * 2**20


@pytest.fixture(scope="module", params=SCALES)
def results(request) -> Results:
    return Results.load(FOLDER / request.param / "results")


def test_there_are_results_and_they_are_small():
    assert "paper" in SCALES
    assert sum(path.stat().st_size for path in FOLDER.glob("*/results/*")) < MOST


def test_errors_are_those_of_the_grams(results):
    assert len(results)
    for result in results:
        for name in ("barycenter", "centralized", "within"):
            expected = psd.relative_error(result.grams, getattr(result, name))
            np.testing.assert_allclose(result.error[name], expected, rtol=1e-12)
        np.testing.assert_allclose(psd.trace(result.centralized - result.barycenter), result.gap_terms.sum())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(results, name):
    for figure in filter(None, figures_of(name, results).values()):
        assert render(figure, "png").startswith(b"\x89PNG")
    plt.close("all")
