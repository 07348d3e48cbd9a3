"""Results of network experiments on disk: exact, compact, and readable without torch or the runs."""

import subprocess
import sys
from dataclasses import fields, replace
from threading import Thread
from time import sleep

import numpy as np
import pandas as pd
import pytest

from fedgram import InputError, Penalty, phi
from fedgram.paper.launch.collect import collect, find_settings, make_results
from fedgram.paper.launch.launch import add_results
from fedgram.paper.launch.plan import Request
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES
from fedgram.paper.storage import read_arrow, write_table
from fedgram.runs.procedure import Procedure
from fedgram.runs.tensor_files import write_arrays
from tests.helpers.small_runs import exact_run, small_problem


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Four runs, of which one is centralized and two are of another setting."""
    folder, scale = tmp_path_factory.mktemp("runs"), SCALES["smoke"]
    words = ("proximal=1e-05", "centered+corrected", "centralized")
    runs = [
        make_results(exact_run(folder, each, rounds=3), ["hopper"], scale, larger=False)[0] for each in words
    ]
    other = replace(runs[0], setting="walker", epochs=7, test_mse=np.full((3, 3), np.nan))
    return Results([*runs, other])


def assert_same(one, other):
    for each in fields(one):
        ours, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(ours, dict):
            assert list(ours) == list(theirs)
        for a, b in (
            zip(ours.values(), theirs.values(), strict=True) if isinstance(ours, dict) else [(ours, theirs)]
        ):
            np.testing.assert_array_equal(a, b, err_msg=each.name)
        assert type(ours) is type(theirs)


def test_a_round_trip_keeps_every_bit(few, tmp_path):
    few.save(tmp_path)
    read = Results.load(tmp_path)
    assert len(read) == len(few)
    by_key = {run.key: run for run in read}
    for run in few:
        assert_same(by_key[run.key], run)


def test_what_a_run_found_is_kept(few):
    run = few.select(procedure="centered+corrected")[0]
    assert (run.target, run.kind, run.dataset, run.rounds) == ("within", "GENERATED", "small", 3)
    assert run.grams.shape == (4, 2, 2)
    assert run.returned_grams.shape == (3, 3, 2, 2)
    np.testing.assert_allclose(run.gap_terms.sum(), np.trace(run.centralized - run.barycenter))
    np.testing.assert_array_equal(run.target_error, run.error["within"])
    assert run.target_error[-1] < 1e-12
    variances = [
        np.linalg.eigvalsh(np.cov(split.targets.T, bias=True)) for split in small_problem().train.values()
    ]
    assert run.least_variance == pytest.approx(np.min(variances), rel=1e-12)
    # The Grams of the clients' own covariances, which a correction would all move to one.
    own = [phi(np.cov(split.targets.T, bias=True), Penalty()) for split in small_problem().train.values()]
    np.testing.assert_allclose(run.client_grams, own, rtol=1e-10)
    assert few.select(procedure="centralized")[0].returned_grams.shape == (3, 1, 2, 2)


@pytest.mark.parametrize(("words", "clients"), [("ordinary", 3), ("centralized", 1)])
def test_what_a_run_took_is_its_share_of_its_stack(words, clients, tmp_path):
    run = exact_run(tmp_path, words, rounds=3)
    run = replace(run, account=replace(run.account, seconds=(1.0, 2.0, 4.0), stack=5))
    (found,) = make_results(run, ["hopper"], SCALES["smoke"], larger=False)
    assert (found.seconds, found.models_in_stack) == (7 / 5, 5 * clients)
    assert (found.train_rows, found.test_rows) == (24 + 20 + 16, 5 + 3 + 0)


def test_the_shared_objective_is_the_mean_over_all_rows(tmp_path):
    run = exact_run(tmp_path, rounds=3)
    by_client = np.stack([each.shared_objective for each in run.rounds()])
    (found,) = make_results(run, ["hopper"], SCALES["smoke"], larger=False)
    np.testing.assert_allclose(found.shared_objective, by_client @ [24 / 60, 20 / 60, 16 / 60], rtol=1e-12)


def test_only_complete_runs_by_the_settings_of_the_scale_are_collected(tmp_path):
    scale = SCALES["smoke"]
    dataset, settings = scale.source("hopper").dataset, scale.settings(1, 3)

    def stored(seed, rounds=3, settings=settings):
        run = exact_run(tmp_path / f"place {seed}", rounds=3, seed=seed)
        setup = replace(run.setup, settings=settings, data=replace(run.setup.data, name=dataset))
        run = replace(run, setup=setup, account=replace(run.account, seconds=(1.0,) * rounds))
        run.save()
        return run

    stored(0)
    stored(1, rounds=2)
    stored(2, settings=replace(settings, batch=7))
    stored(4, settings=replace(settings, precision="bf16"))
    stored(5, settings=replace(settings, precision="fp16"))
    write_arrays(stored(3).folder.parents[1] / "stack-1.safetensors", {"finished": np.ones(1)})
    found = collect(tmp_path, scale)
    assert {run.setting for run in found} == set(find_settings(dataset, scale))
    assert {(run.seed, run.precision) for run in found} == {(0, "tf32"), (5, "fp16")}
    assert len(collect(tmp_path, scale, known=[run.key for run in found])) == 0


def test_selection(few):
    assert len(few.select(setting="hopper")) == 3
    assert [run.epochs for run in few.select(procedure=Procedure(proximal=1e-5))] == [1, 7]
    assert few.select(setting="walker", epochs=7, scale="smoke", larger=False)[0].setting == "walker"
    assert len(few.select(scale="paper")) == 0


def test_merging_replaces_the_same_run_and_keeps_other_scales(few):
    newer = [replace(few[0], seconds=9.0), replace(few[0], scale="paper")]
    merged = few.merge(newer)
    assert len(merged) == 5
    assert [run.seconds for run in merged.select(scale="smoke", procedure="proximal=1e-5", epochs=1)] == [9.0]


def test_nothing_is_lost_when_two_keep_results_at_once(few, tmp_path, monkeypatch):
    """Each waits for the other between its reading and its writing."""
    load = Results.load

    def slow(folder):
        found = load(folder)
        sleep(0.3)
        return found

    monkeypatch.setattr(Results, "load", slow)
    request = Request(tmp_path, SCALES["smoke"])
    both = [Thread(target=add_results, args=(request.results_folder, [run])) for run in few[:2]]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert {run.key for run in load(request.results_folder)} == {run.key for run in few[:2]}


def test_files_of_other_settings_stay_and_unchanged_ones_are_not_written(few, tmp_path):
    hopper, walker = few.select(setting="hopper"), few.select(setting="walker")
    (path,) = hopper.save(tmp_path)
    before = path.stat().st_mtime_ns
    walker.save(tmp_path)
    few.save(tmp_path)
    assert path.stat().st_mtime_ns == before
    assert len(Results.load(tmp_path)) == 4


def test_damage_is_named_and_no_folder_is_no_results(few, tmp_path):
    assert len(Results.load(tmp_path / "nowhere")) == 0
    path = few.save(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="is damaged"):
        Results.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write to"):
        few.save(tmp_path / "file")


def test_files_of_another_version_are_named(few, tmp_path):
    few.save(tmp_path)
    path = next(tmp_path.glob("*.parquet"))
    table, settings = read_arrow(path)
    columns = {name: table[name] for name in table.column_names}
    renamed = {"place" if name == "device" else name: column for name, column in columns.items()}
    more = columns | {"more": columns["seed"]}
    for written, made_by in ((renamed, settings), (more, settings), (columns, {})):
        write_table(path, written, made_by)
        with pytest.raises(InputError, match=r"Another version of fedgram wrote .*\. Move it away"):
            Results.load(tmp_path)


def test_pandas_reads_a_row_for_each_run_and_round(few, tmp_path):
    few.save(tmp_path)
    table = pd.concat([pd.read_parquet(path) for path in sorted(tmp_path.glob("*.parquet"))])
    assert len(table) == sum(run.rounds + 1 for run in few)
    by_run = table.groupby(["setting", "epochs", "procedure", "seed"])
    for run in few:
        rows = by_run.get_group((run.setting, run.epochs, run.procedure.name, run.seed))
        assert rows["round"].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(rows["error_barycenter"], run.error["barycenter"])
        np.testing.assert_array_equal(rows["test_mse_private"][1:], run.test_mse[:, 1])
        np.testing.assert_array_equal(rows["delta"], [np.nan, *run.delta])
        np.testing.assert_array_equal(np.stack(rows["grams"]), run.grams.reshape(4, -1))
        np.testing.assert_array_equal(rows["barycenter"].iloc[2], run.barycenter.ravel())


def test_reading_needs_neither_torch_nor_runs(few, tmp_path):
    few.save(tmp_path)
    code = (
        "import sys; sys.modules.update(torch=None, safetensors=None); from pathlib import Path; "
        "from fedgram.paper.networks.results import Results; "
        f"from fedgram.paper.networks import studies; print(len(Results.load(Path({str(tmp_path)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "4\n", done.stderr
