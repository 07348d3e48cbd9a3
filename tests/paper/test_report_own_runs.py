"""The reader's own runs in the report: sentences, tables by site in the targets' units, and the page."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram.display import plotting
from fedgram.display.site_errors import SiteErrors, has_own_units, read_tested
from fedgram.paper.report import own_runs
from fedgram.paper.report.own_runs import describe_training, find_errors, summarize_training, tell_runs
from fedgram.paper.report.page import load_templates, write_report
from fedgram.paper.report.svg import FigureEmbedder
from fedgram.runs.compare import compare_runs
from fedgram.runs.held_out import HeldOutErrors
from tests.helpers.small_runs import exact_run

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 72 72"></svg>'
SCALE = {"mean_and_deviation": {"x": [5.0, 10.0], "y": [0.0, 2.0]}}
VARIANCE = np.ones((3, 2))


def with_errors(run, mse, provenance=SCALE):
    """The run with given errors (3 sites, 2 targets); the last site has no test rows."""
    mse, variance = np.array(mse, float), VARIANCE.copy()
    mse[2] = variance[2] = np.nan
    errors = HeldOutErrors(np.array([10, 6, 0]), mse, variance, np.ones(2))
    setup = replace(run.setup, data=replace(run.setup.data, provenance=provenance))
    return replace(run, setup=setup, account=replace(run.account, tested=errors.document()))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Two seeds of two procedures; 'proximal' predicts better, except the second target at site 1."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for seed in range(2):
        better = [[0.04 + 0.05 * seed, 0.16], [0.25, 0.36], [0, 0]]
        found.append(with_errors(exact_run(folder, "proximal", rounds=2, seed=seed), better))
        worse = [[0.36, 0.25], [0.49, 0.25], [0, 0]]
        found.append(with_errors(exact_run(folder, "ordinary", rounds=2, seed=seed), worse))
    return found


@pytest.fixture
def no_rendering(monkeypatch):
    def close(figure, suffix):
        plotting.pyplot().close(figure)
        return SVG

    monkeypatch.setattr(own_runs, "render", close)


@pytest.fixture
def described(stored, no_rendering):
    (setting,) = describe_training(compare_runs(stored), read_tested(stored), FigureEmbedder())
    return setting


def test_errors_are_in_the_units_of_the_targets(stored):
    (setting,) = compare_runs(stored)
    assert has_own_units(setting)
    errors = SiteErrors.from_group(setting.groups[0], read_tested(stored))
    np.testing.assert_allclose(errors.rmse[:, 0], [[2.0, 0.8], [3.0, 0.8]])  # √0.04 × 10, √0.16 × 2
    np.testing.assert_allclose(errors.r2[:, 1], [[0.75, 0.64]] * 2)
    assert np.isnan(errors.rmse[:, 2]).all()
    pooled = 10 * np.sqrt([(5 * 0.04 + 3 * 0.25) / 8, (5 * 0.09 + 3 * 0.25) / 8])
    np.testing.assert_allclose(errors.total_rmse[:, 0], pooled)


def test_the_tables_have_every_site_and_mark_the_least_error(described):
    first, second = described["tables"]
    assert (first["target"], first["columns"]) == ("x", ["proximal", "ordinary"])
    assert [row["site"] for row in first["rows"]] == ["all sites", "site 0", "site 1", "site 2"]
    assert [row["test_rows"] for row in first["rows"]] == [8, 5, 3, 0]
    cell = first["rows"][1]["cells"][0]
    assert (cell["rmse"], cell["r2"], cell["is_best"]) == ("2.5 ± 0.7", "0.94 ± 0.04", True)
    assert [cell["is_best"] for cell in second["rows"][2]["cells"]] == [False, True]
    assert [cell["rmse"] for cell in second["rows"][3]["cells"]] == ["none", "none"]
    assert not any(cell["is_best"] for cell in second["rows"][3]["cells"])
    assert "own units" in described["units"]


def test_the_sentences_name_the_best_procedure_and_its_errors(described):
    story = {sentence.heading: sentence.text for sentence in described["story"]}
    assert list(story) == ["Data", "Trained", "Errors", "Heads"]
    assert story["Data"] == "3 sites with 60 training and 8 test rows; targets x, y."
    assert story["Trained"] == "'proximal', 'ordinary' with seeds 0, 1; 2 rounds of 1 epoch."
    assert story["Errors"].startswith("'proximal' predicts test rows best. x: RMSE 3.6")
    assert "ordinary: " in story["Heads"]


def test_joining_is_compared_with_working_alone_site_by_site(stored, tmp_path):
    alone = with_errors(exact_run(tmp_path, "local", rounds=2), [[0.36, 0.25], [0.2, 0.25], [0, 0]])
    runs = [stored[0], alone]
    (setting,) = compare_runs(runs)
    story = {each.heading: each.text for each in tell_runs(setting, find_errors(setting, read_tested(runs)))}
    assert story["Joining"].endswith("x: 1 of 2; y: 1 of 2.")
    assert "not" not in story["Heads"]


def test_one_sentence_is_about_the_heads_of_many_procedures(tmp_path):
    names = ["ordinary", "proximal", "corrected", "aligned", "solved"]
    (setting,) = compare_runs([exact_run(tmp_path, name, rounds=2) for name in names])
    (heads,) = (each.text for each in tell_runs(setting, {}) if each.heading == "Heads")
    assert heads.startswith("5 procedures end between ")
    assert heads.endswith(" away from their predicted limits.")


@pytest.mark.usefixtures("no_rendering")
def test_a_run_without_a_limit_says_what_joining_changes_and_has_no_columns_of_heads(tmp_path):
    run = exact_run(tmp_path, "full-model+moment-head+blended", rounds=1)
    compared = {"test_mse": [1.0, 2.0, None], "alone_mse": [2.0, 2.0, None]}
    compared |= {"change_low": [-0.6, -0.1, None], "change_high": [-0.4, 0.1, None]}
    data = replace(run.setup.data, test_rows=(6, 6, 0))
    setup, account = replace(run.setup, data=data), replace(run.account, chosen=compared)
    (setting,) = describe_training(
        compare_runs([replace(run, setup=setup, account=account)]), {}, FigureEmbedder()
    )
    story = {each.heading: each.text for each in setting["story"]}
    assert "over the test rows of 2 sites from 2 to 1.5: clear gain at 1, clear loss at 0" in story["Joining"]
    assert setting["columns"] == ["procedure", "test MSE"]
    assert [len(row) for row in setting["rows"]] == [2]


@pytest.mark.usefixtures("no_rendering")
def test_a_page_without_test_rows_and_limits_has_no_table_of_numbers(tmp_path):
    run = exact_run(tmp_path / "runs", "full-model+moment-head", rounds=1)
    setup = replace(run.setup, data=replace(run.setup.data, test_rows=(0, 0, 0)))
    replace(run, setup=setup).save()
    page = tmp_path / "report.html"
    write_report(tmp_path / "none", page, tmp_path / "runs")
    html = page.read_text("utf-8")
    assert "There are no test rows." in html
    assert "Heads compared with the prediction" not in html
    assert "Full-model training averages the backbones too" in html


@pytest.mark.parametrize(
    ("rows", "words"),
    [((5, 3, 0), "Errors on test rows were not stored; only"), ((0, 0, 0), "There are no test rows; only")],
)
def test_runs_without_errors_have_heads_only(tmp_path, rows, words):
    run = exact_run(tmp_path, rounds=1)
    data = replace(run.setup.data, test_rows=rows)
    (setting,) = compare_runs([replace(run, setup=replace(run.setup, data=data))])
    story = {each.heading: each.text for each in tell_runs(setting, {})}
    assert list(story) == ["Data", "Trained", "Errors", "Heads"]
    assert story["Errors"].startswith(words)


@pytest.mark.usefixtures("no_rendering")
def test_a_page_of_own_runs_is_not_about_the_paper(tmp_path):
    for procedure in ("ordinary", "proximal"):
        exact_run(tmp_path / "runs", procedure, rounds=2)
    page = tmp_path / "report.html"
    said = write_report(tmp_path / "none", page, tmp_path / "runs")
    html = page.read_text("utf-8")
    assert said == "2 trained runs (small, none)"
    assert "<title>fedgram: trained runs</title>" in html
    assert "<h1>Trained runs</h1>" in html
    assert "Reproduction of the paper" not in html
    assert 'id="claims"' not in html
    assert 'id="not-run"' not in html
    assert html.count("fedgram reproduce") == 1
    assert '<button type="button" value="own-0">small, none</button>' in html  # opens the explorer


def test_settings_are_counted(stored):
    assert summarize_training(compare_runs(stored)) == "4 trained runs (small, none)"


def test_symbols_of_sentences_are_set_and_names_are_escaped():
    set_symbols = load_templates().filters["symbols"]
    assert set_symbols("<b>: 1.0 × 10⁻⁴ from G_cen, R² 0.9") == (
        "&lt;b&gt;: 1.0&nbsp;×&nbsp;10⁻⁴ from G<sub>cen</sub>, R²&nbsp;0.9"
    )
    assert set_symbols("G_⋆ and G⋆") == "G<sub>⋆</sub> and G<sub>⋆</sub>"
