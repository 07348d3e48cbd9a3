"""A reader's way from a table of six stations to predictions of the next year and a report."""

import csv
import math

import pytest

from tests.helpers.command import fedgram
from tests.helpers.journey import SITES, TARGETS, find_command, travel, write_sites

BUDGET = ("--backbone", "wide-deep-64", "--rounds", "8", "--epochs", "2")
ROWS = 200


def test_the_printed_command_is_found():
    said = "The rest.\nTrain it, and keep it:\n  fedgram train 'my sites.csv' --rounds 3\n"
    assert find_command(said) == ["train", "my sites.csv", "--rounds", "3"]


@pytest.fixture(scope="module")
def journey(tmp_path_factory):
    """Outputs by command, and the folder that they wrote to."""
    folder = tmp_path_factory.mktemp("journey")
    write_sites(folder, ROWS)

    def run(*arguments):
        finished = fedgram(*arguments, cwd=folder, columns=200)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return dict(travel(folder, run, *BUDGET)), folder


@pytest.mark.slow
def test_explain_names_every_site_in_the_units_of_the_targets(journey):
    said, _ = journey
    assert all(site in said["explain"] for site in SITES)
    assert "µg/m³" in said["explain"]
    assert "different client means" in said["explain"]


@pytest.mark.slow
def test_explore_writes_a_page_with_moments_but_no_rows(journey):
    _, folder = journey
    page = (folder / "explorer.html").read_text()
    assert all(site in page for site in SITES)
    assert len(page) < 300_000


@pytest.mark.slow
def test_advise_judges_every_site_and_recommends_a_model(journey):
    said, _ = journey
    assert all(site in said["advise"] for site in SITES)
    assert "(recommended)" in said["advise"]
    assert "What leaves each site:" in said["advise"]


@pytest.mark.slow
def test_the_recommended_model_predicts_the_next_year_better_than_the_mean_of_each_site(journey):
    _, folder = journey
    with (folder / "predicted.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "new.csv").open(newline="") as file:
        given = list(csv.DictReader(file))
    assert [row["time"] for row in rows] == [row["time"] for row in given]
    with (folder / "sites.csv").open(newline="") as file:
        past = list(csv.DictReader(file))
    for target in TARGETS:
        means = {
            site: math.fsum(float(row[target]) for row in past if row["station"] == site)
            / sum(row["station"] == site for row in past)
            for site in SITES
        }
        model, mean = (
            math.fsum((float(row[target]) - guess(row)) ** 2 for row in rows)
            for guess in (
                lambda row, name=f"{target} predicted": float(row[name]),
                lambda row, means=means: means[row["station"]],
            )
        )
        assert model < 0.8 * mean


@pytest.mark.slow
def test_the_report_opens_with_the_trained_run(journey):
    said, folder = journey
    html = (folder / "report.html").read_text()
    start = html.index("<h1>Trained runs</h1>")
    # the printed command trains on all rows
    assert start < html.index("There are no test rows.")
    assert "RMSE and R² of every site" not in html
    assert "not run" in html[start:]  # the paper's experiments, in one line
    assert "claims" not in said["report"]
    assert said["report"].startswith("Wrote report.html")
