"""The results that come with the project: sound, small, and enough to draw every figure without a GPU."""

import json
from functools import cache
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from fedgram.display.plotting import render
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.studies.registry import STUDIES, figures_of
from fedgram.runs.measure import direction_error
from fedgram.theory.geometry import psd

FOLDER = Path(__file__).parents[2] / "results"
SCALES = sorted(path.parent.name for path in FOLDER.glob("*/results"))
MOST = 20 * 2**20


@cache
def load(scale) -> Results:
    return Results.load(FOLDER / scale / "results")


@pytest.fixture(params=SCALES)
def results(request) -> Results:
    return load(request.param)


def test_there_are_results_and_they_are_small():
    assert "paper" in SCALES
    assert sum(path.stat().st_size for path in FOLDER.glob("*/results/*")) < MOST


def test_errors_are_those_of_the_grams(results):
    assert len(results)
    for result in results:
        for name in ("barycenter", "centralized", "within"):
            expected = psd.relative_error(result.grams, getattr(result, name))
            np.testing.assert_allclose(result.error[name], expected, rtol=1e-12)
            turned = direction_error(result.grams, getattr(result, name))
            np.testing.assert_allclose(result.direction_error[name], turned, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(psd.trace(result.centralized - result.barycenter), result.gap_terms.sum())


@pytest.mark.parametrize("scale", SCALES)
def test_the_manifest_has_the_checksums_of_all_files(scale, tmp_path):
    folder = FOLDER / scale / "results"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"].keys() == {path.name for path in folder.glob("*.parquet")}
    load(scale).save(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["files"] == manifest["files"]


@pytest.mark.parametrize(
    ("file", "procedure", "seed", "errors", "delta", "seconds"),
    [
        ("paper/results/paper-hopper-hopper-rollouts-resmlp-E4000-rounds8", "proximal", 0,
         [0.3718327178035794, 0.009357388186636135, 0.00034707081616833766], 0.00430929211973912,
         63.839229442999994),
        ("reduced/results/reduced-dsprites-sprites-resnet18-E400-rounds8", "ordinary", 0,
         [0.6536155953401103, 0.29914459995288023, 0.16976321914941378], 0.3245590136412184,
         423.30825764900004),
    ],
)  # fmt: skip
def test_pandas_reads_the_numbers_that_were_measured(file, procedure, seed, errors, delta, seconds):
    table = pd.read_parquet(FOLDER / f"{file}.parquet")
    rows = table[(table["procedure"] == procedure) & (table["seed"] == seed)]
    assert rows["round"].tolist() == list(range(9))
    assert rows["error_barycenter"].iloc[[0, 1, 8]].tolist() == errors
    assert (rows["delta"].iloc[8], rows["seconds"].iloc[0]) == (delta, seconds)
    assert {len(gram) for gram in rows["grams"]} == {9}


SLOW = {("paper", "dnn-main"), ("paper", "beyond-solved"), *(("reduced", name) for name in STUDIES)}


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each in SLOW else ())
        for each in product(("paper", "reduced"), STUDIES)
    ],
)
def test_every_figure_is_drawn(scale, name):
    for figure in filter(None, figures_of(name, load(scale)).values()):
        figure.set_layout_engine("none")  # which takes longest, and is tried elsewhere
        assert render(figure, "png", dpi=20).startswith(b"\x89PNG")
    plt.close("all")
