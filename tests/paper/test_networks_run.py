"""Network experiments end to end on embedded data: trained, saved, judged, drawn, resumed and spread."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from rich.console import Console

from fedgram import InputError
from fedgram.display import plotting
from fedgram.paper import printing
from fedgram.paper.launch.collect import collect
from fedgram.paper.launch.jobs import JobContext, run_jobs
from fedgram.paper.launch.launch import run
from fedgram.paper.launch.plan import Request
from fedgram.paper.networks.results import Results
from fedgram.paper.networks.scales import SCALES, Scale
from fedgram.paper.networks.settings import ALL, IMAGES, TABULAR
from fedgram.paper.networks.studies import registry
from fedgram.paper.networks.studies.registry import STUDIES, figures_of
from fedgram.runs.train_config import TrainConfig
from tests.helpers.command import fedgram

BLINK = replace(SCALES["smoke"], divisor=4000, most_rounds=2, most_seeds=1)
"""Below smoke: one epoch, two rounds and one seed."""


def request(out, **narrowed):
    return Request(out, narrowed.pop("scale", BLINK), device="cpu", **narrowed)


@pytest.fixture(scope="module", autouse=True)
def no_figures():
    """Write a text instead of figures; other tests draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "figures_of", lambda name, results: {"": name})
        patch.setattr(registry, "render_styled", lambda figure, suffix: b"an image")
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All experiments in one call: folder, outcomes by name, messages and plans."""
    out, said, plans = tmp_path_factory.mktemp("networks"), [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "smoke", BLINK)  # by which figures and claims find their runs
        found = run(list(STUDIES.values()), request(out), on_start=plans.extend, on_warning=said.append)
    return out, {outcome.plan.study.name: outcome for outcome in found}, said, plans


@pytest.mark.parametrize("name", STUDIES)
def test_every_experiment_runs_to_its_end(name, everything):
    out, outcomes, *_ = everything
    outcome = outcomes[name]
    assert len(outcome.results) == outcome.plan.total == len(outcome.plan.keys)
    assert all(path.exists() for path in outcome.files)
    assert any(path.suffix == ".svg" for path in outcome.files)
    assert {each.verdict for each in outcome.judged} <= {"not comparable", "match"}
    folder = out / "smoke" / name
    document, manifest = (
        json.loads((folder / f"{part}.json").read_text()) for part in ("claims", "manifest")
    )
    assert len(document["claims"]) == len(outcome.judged)
    assert manifest["data"] == document["data"] == "GENERATED"
    assert all((folder / path).resolve().exists() for path in manifest["results"])
    for run_ in outcome.results:
        assert np.isfinite(run_.grams).all()
        assert run_.scale == "smoke"


def test_plans_come_first_and_jobs_share_stacks(everything):
    _, _, said, plans = everything
    assert [plan.study.name for plan in plans] == list(STUDIES)
    finished = [sentence for sentence in said if sentence.endswith(": finished.")]
    keys = {key for plan in plans for key in plan.keys}
    assert len(finished) == 6 < len(keys)  # two datasets; one and two rounds; another network; larger data


def test_runs_on_disk_give_the_same_results(everything):
    out, outcomes, *_ = everything
    again = {result.key: result for result in collect(out / "smoke" / "runs", BLINK)}
    for result in outcomes["dnn-architecture"].results:
        np.testing.assert_array_equal(again[result.key].grams, result.grams)
        assert again[result.key].larger == result.larger


def test_runs_are_shared_between_settings_and_experiments(everything):
    _, outcomes, *_ = everything
    main = outcomes["dnn-main"].results
    for names, dataset in ((TABULAR, "swimmer-mini"), (IMAGES, "sprites")):
        runs = [main.select(setting=name, procedure="proximal")[0] for name in names]
        assert {run_.dataset for run_ in runs} == {dataset}
        assert all(run_.seconds == runs[0].seconds for run_ in runs)
    assert outcomes["dnn-prediction"].results[0].key in {run_.key for run_ in main}


def test_mismatched_coordinates_have_the_same_local_models(everything):
    _, outcomes, *_ = everything
    results = outcomes["dnn-alignment"].results.select(setting="swimmer")
    pairs = (("ordinary", "aligned"), ("independent", "aligned+independent"))
    for words in pairs:
        raw, aligned = (results.select(procedure=each)[0] for each in words)
        np.testing.assert_allclose(raw.returned_grams[0], aligned.returned_grams[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(raw.objective_gap[0], aligned.objective_gap[0], rtol=1e-4)
        assert raw.shared_objective[0] != aligned.shared_objective[0]


def test_what_is_finished_is_not_trained_again(everything, monkeypatch):
    out, outcomes, *_ = everything

    def never(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr("fedgram.paper.launch.jobs.run_job", never)
    (again,) = run([STUDIES["dnn-means"]], request(out))
    assert len(again.results) == len(outcomes["dnn-means"].results)


def test_a_killed_experiment_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    narrowed = {"settings": ("swimmer",), "procedures": ("ordinary",), "seeds": (0,)}
    study, said = STUDIES["dnn-main"], []

    def stop(status):
        if status.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([study], request(tmp_path / "a", **narrowed), on_epoch=stop)
    assert not Results.load(tmp_path / "a" / "smoke" / "results")
    (stopped,) = run([study], request(tmp_path / "a", **narrowed), on_warning=said.append)
    assert any("after round 1" in sentence for sentence in said)
    (whole,) = run([study], request(tmp_path / "b", **narrowed))
    assert len(stopped.results) == len(whole.results) == 5  # settings that share the run
    np.testing.assert_array_equal(stopped.results[0].grams, whole.results[0].grams)


def test_nothing_is_trained_where_results_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="need pyarrow"):
        run([STUDIES["dnn-main"]], request(tmp_path))
    assert not list(tmp_path.iterdir())


def test_runs_are_collected_where_results_are_lost(tmp_path, monkeypatch):
    narrowed = {"settings": ("swimmer",), "procedures": ("ordinary",), "seeds": (0,)}
    (outcome,) = run([STUDIES["dnn-main"]], request(tmp_path, **narrowed))
    assert len(outcome.results) == 5
    rmtree(tmp_path / "smoke" / "results")
    monkeypatch.setattr("fedgram.paper.launch.jobs.run_job", None)
    (again,) = run([STUDIES["dnn-main"]], request(tmp_path, **narrowed))
    np.testing.assert_array_equal(again.results[0].grams, outcome.results[0].grams)
    assert len(Results.load(tmp_path / "smoke" / "results")) == 5


def test_narrowing_trains_only_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "smoke", BLINK)
    narrowed = {"settings": ("hopper",), "procedures": ("aligned", "ordinary"), "seeds": (0,)}
    (outcome,) = run([STUDIES["dnn-alignment"]], request(tmp_path, **narrowed))
    assert {each.procedure.name for each in outcome.results} == {"ordinary", "aligned"}
    assert {each.dataset for each in outcome.results} == {"swimmer-mini"}
    judged = {each.claim.id: each for each in outcome.judged}
    assert judged["alignment-aligned-endpoint"].verdict == "not comparable"
    assert judged["alignment-proximal-endpoint"].verdict == "not run"


def test_data_that_cannot_be_used_is_not_run_unless_asked_for(tmp_path, monkeypatch):
    def refused(self, source, folder, larger):
        raise InputError("The file is cut short.", field="file")

    monkeypatch.setattr(Scale, "problem", refused)
    (outcome,) = run([STUDIES["dnn-means"]], request(tmp_path))
    assert len(outcome.plan.not_run) == 10
    assert {each.verdict for each in outcome.judged} == {"not run"}
    document = outcome.document()
    assert document["not_run"][0] == "Beijing is not run: The file is cut short."
    assert document["description"] == SCALES["smoke"].description
    with pytest.raises(InputError, match="cut short"):
        run([STUDIES["dnn-means"]], request(tmp_path, settings=("beijing",)))


def test_runs_that_diverge_are_named_and_left_out(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(
        Scale,
        "settings",
        lambda self, epochs, rounds: TrainConfig(
            epochs=epochs, rounds=rounds, features=8, learning_rate=1e30, clip=1e30
        ),
    )
    narrowed = {"settings": ("swimmer",), "procedures": ("ordinary",), "seeds": (0,)}
    (outcome,) = run([STUDIES["dnn-main"]], request(tmp_path, **narrowed), on_warning=said.append)
    assert len(outcome.results) == 0
    assert "diverged: ordinary/seed-0" in said[-1]


def test_no_engine_of_that_name_and_none_without_ray(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"Unknown engine: 'spark'\. Engines are local, ray"):
        run([STUDIES["dnn-main"]], request(tmp_path, engine="spark"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedgram\[cluster\]'"):
        next(run_jobs("ray", [], JobContext(tmp_path, tmp_path, "cpu")))


SMOKE = ("--scale", "smoke", "--setting", "swimmer", "--seeds", "1", "--device", "cpu", "--out")


def smoke(out, *more, names=("dnn-full-model",)):
    return fedgram("reproduce", *names, *SMOKE, out, *more, columns=160)


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "figures_of", figures_of)
    monkeypatch.setattr(registry, "render_styled", lambda *figure: plotting.render(*figure, dpi=20))
    done = smoke(tmp_path, "--procedure", "full-model")
    assert done.returncode == 0, done.stderr
    assert "dnn-full-model: 2 of 30 runs asked for, 0 of them finished" in done.stderr
    assert "finished: 2 of 2 runs asked for, 10 of 30 in all" in done.stdout
    assert "not comparable: smoke scale" in done.stdout
    assert "agrees so far" not in done.stdout
    again = smoke(tmp_path, "--procedure", "full-model", "--json")
    assert "2 of them finished; nothing left to train." in again.stderr
    document = json.loads(again.stdout)
    assert (document["scale"], document["runs"]) == ("smoke", {"finished": 10, "in_all": 30})
    assert all(Path(path).exists() for path in document["files"])


def test_settings_are_named_with_commas_or_one_by_one(tmp_path):
    procedure = ("--procedure", "full-model,ordinary")
    done = smoke(tmp_path, "--setting", "hopper,walker", *procedure)
    assert done.returncode == 0, done.stderr
    assert "dnn-full-model: 6 of 30 runs asked for, 0 of them finished" in done.stderr


def test_several_experiments_share_their_runs(tmp_path):
    done = smoke(tmp_path, "--procedure", "ordinary", names=("dnn-means", "dnn-rho"))
    assert done.returncode == 0, done.stderr
    assert "1 of 1: swimmer-mini" in done.stderr
    assert {path.name for path in (tmp_path / "smoke").iterdir()} == {
        "dnn-means",
        "dnn-rho",
        "results",
        "runs",
    }


def test_what_was_found_names_its_data_in_the_papers_order(everything, capsys, monkeypatch):
    _, outcomes, *_ = everything
    monkeypatch.setattr(printing, "console", Console(width=80, force_terminal=False))
    printing.print_outcome(outcomes["beyond-prediction"])
    said = capsys.readouterr().out
    images = [name for name in ALL if name not in TABULAR]
    for dataset, settings in (("swimmer-mini", TABULAR), ("sprites", images)):
        assert f"{dataset} (GENERATED) for {', '.join(settings)} " in f"{' '.join(said.split())} "
    procedures = sorted({each.procedure.name for each in outcomes["beyond-prediction"].results})
    lines = [line.split() for line in said.splitlines()]
    assert [row[1] for row in lines if len(row) == 8 and row[0].isdigit()] == procedures * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dnn-main", "--scale", "huge"], "Unknown scale 'huge'"),
        (["dnn-main", "--setting", "hoper"], "did you mean 'hopper'"),
        (["dnn-main", "--seeds", "a"], "Invalid --seeds: 'a'"),
        (["dnn-main", "--epochs", "1e3"], "Invalid --epochs: '1e3'"),
        (["dnn-main", "--scale", "smoke", "--engine", "spark"], "Unknown engine: 'spark'"),
        (["dnn-main", "--setting", "walker", "--data-dir", "nowhere"], "needs JAT's training episodes"),
        (["dnn-mein"], "did you mean 'dnn-main'"),
    ],
)
def test_bad_calls_exit_with_2(arguments, words, tmp_path):
    done = fedgram("reproduce", *arguments, "--out", tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed.")
def test_a_cluster_finds_the_same(tmp_path):
    command = [Path(sys.executable).with_name("fedgram"), "reproduce", "dnn-full-model", *SMOKE]
    for engine in ("local", "ray"):  # in processes of their own: Ray warns, and leaves files open
        words = [*command, tmp_path / engine, "--engine", engine]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    ours, theirs = (Results.load(tmp_path / engine / "smoke" / "results") for engine in ("local", "ray"))
    assert len(ours) == len(theirs) == 15  # five settings share three runs
    for one, other in zip(ours, theirs, strict=True):
        assert one.key == other.key
        np.testing.assert_allclose(one.grams, other.grams, rtol=1e-6)
