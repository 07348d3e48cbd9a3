"""Every planted error is noticed by the check that docs/mutations.md names."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fedgram.paper.claims import load_claims
from fedgram.paper.networks.results import Results, file_name
from tests.mutations.mutations import MUTATIONS, RESULTS
from tests.mutations.plant import PACKAGE, ROOT, notices, plant
from tests.paper import test_networks_committed

PAGE = (ROOT / "docs" / "mutations.md").read_text()
NAMES = [f"{each.file}: {each.name}" for each in MUTATIONS]


def test_there_are_enough_errors_and_their_places_exist():
    assert len(set(NAMES)) == len(MUTATIONS) >= 30
    for each in MUTATIONS:
        assert (PACKAGE / each.file).read_text().count(each.before) == 1, each.name
        assert each.before != each.after


def test_the_page_names_every_error_and_its_check():
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.splitlines()}
    for each in MUTATIONS:
        assert each.caught_by.rsplit(": ")[-1].rsplit("::")[-1] in rows[each.name]
    for name, (_, check) in RESULTS.items():
        assert check.partition("::")[2] in rows[name]


def test_checks_are_quick_tests_or_claims():
    claims = {f"{claim.experiment}: {claim.id}" for claim in load_claims()}
    for each in MUTATIONS:
        if each.is_claim:
            assert each.caught_by in claims
        else:
            path, _, test = each.caught_by.partition("::")
            source = (ROOT / path).read_text()
            assert f"def {test}" in source
            above = source[: source.index(f"def {test}(")].rsplit("\n\n\n", 1)[-1]
            assert "slow" not in above


@cache
def committed():
    """The runs of one file."""
    runs = Results.load(ROOT / "results" / "paper" / "results")
    return [run for run in runs if file_name(run) == file_name(runs[0])]


@pytest.mark.parametrize("name", RESULTS)
def test_a_results_file_that_was_changed_is_noticed(name):
    change, place = RESULTS[name]
    check = getattr(test_networks_committed, place.partition("::")[2])
    check(Results(committed()))
    with pytest.raises(AssertionError):
        check(Results(map(change, committed())))


def test_a_planted_error_is_in_the_copy_alone(tmp_path):
    mutation = MUTATIONS[0]
    plant(mutation, tmp_path)
    assert mutation.after in (tmp_path / "fedgram" / mutation.file).read_text()
    assert mutation.before in (PACKAGE / mutation.file).read_text()
    with pytest.raises(ValueError, match="must occur once"):
        plant(replace(mutation, before="no such text"), tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=NAMES)
def test_planted_errors_are_caught(mutation, tmp_path: Path):
    plant(mutation, tmp_path)
    assert notices(mutation.caught_by, tmp_path)
