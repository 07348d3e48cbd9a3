"""Tables and pictures that are committed are those that their code makes from committed results."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytestmark = pytest.mark.slow

MOST_DIFFERENT = 0.01
"""Mean difference of two pictures of one figure: fonts are rendered differently by other versions."""


def assert_current(page, name, text):
    from benchmark_pages import put_between

    assert put_between(page, name, text) == page, f"'{name}' is out of date"


def assert_same_picture(one, two):
    first, second = imread(one), imread(two)
    assert first.shape == second.shape
    assert np.abs(first - second).mean() < MOST_DIFFERENT


def test_the_tables_of_readme_are_current():
    import readme_numbers

    assert_current((ROOT / "README.md").read_text(), "numbers", readme_numbers.tables())


def test_the_tables_of_reproduction_are_current():
    import reproduction_page

    page = reproduction_page.PAGE.read_text()
    for name, text in reproduction_page.tables().items():
        assert_current(page, name, text)


def test_the_tables_of_benchmarks_are_current():
    import site_problems
    import site_results
    import sites

    page = (ROOT / "docs" / "benchmarks.md").read_text()
    results = site_results.Results(sites.STORED, sites.ORDER)
    for group, names in site_problems.GROUPS.items():
        assert_current(page, f"{group} sites", site_results.markdown(results, results.problems(names)))


@pytest.mark.parametrize(
    "script",
    ["advice_results", "barycenter_results", "explorer", "intervals", "large_tables", "moments"],
)
def test_the_tables_of_scripts_with_stored_results_are_current(script):
    from benchmark_pages import read_results

    page = (ROOT / "docs" / "benchmarks.md").read_text()
    module = import_module(script)
    for name, text in module.tables(read_results(module.STORED)).items():
        assert_current(page, name, text)


def test_the_table_of_federations_is_current():
    pytest.importorskip("flwr", reason="The extra 'flower' is not installed.")
    import federation

    tables = federation.markdown(federation.read_json(federation.STORED))
    assert_current((ROOT / "docs" / "benchmarks.md").read_text(), "federation", tables)


def test_the_pictures_are_current(tmp_path):
    import barycenter_results as barycenters
    import readme_numbers
    import site_problems
    import site_results
    import sites

    figures = ROOT / "docs" / "figures"
    readme_numbers.draw(tmp_path / "three_sites.png")
    rows = barycenters.read_rows(barycenters.STORED)
    barycenters.draw_times(rows, tmp_path / "barycenter_benchmark.png")
    results = site_results.Results(sites.STORED, sites.ORDER)
    for group, names in site_problems.GROUPS.items():
        shown = results.problems(names)
        kinds = {site_problems.kind_of(name): None for name in shown}
        site_results.draw_figure(results, shown, tmp_path / f"sites_{group}.png", " and ".join(kinds))
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in figures.iterdir())
    for name in made:
        assert_same_picture(tmp_path / name, figures / name)
