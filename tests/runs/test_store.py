"""Runs on disk: what is written is read back, and nothing that stops a process can spoil it."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedgram import InputError, Moments
from fedgram.runs import Runs, Setup, tensor_files
from fedgram.runs.procedure import Procedure
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.penalty import Penalty
from fedgram.training import train
from fedgram.training.trainer import summarize
from tests.helpers.small_runs import (
    PROCEDURES,
    SETTINGS,
    assert_same_contents,
    exact_run,
    small_problem,
    trained,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    trained(folder)
    return folder


@pytest.fixture(scope="module")
def whole_of_seed_0(tmp_path_factory):
    """The runs of one seed that nothing interrupted."""
    folder = tmp_path_factory.mktemp("seed-0")
    trained(folder, seeds=[0])
    return folder


class Killed(BaseException):
    """A process that ends here and now: nothing catches it."""


def replacing(monkeypatch, *, stop_at, problem):
    """Let the process meet a problem instead of finishing file number `stop_at`; count all files."""
    finished, real = [], os.replace

    def replace_file(temporary, path):
        if len(finished) == stop_at:
            raise problem
        real(temporary, path)
        finished.append(path)

    monkeypatch.setattr(os, "replace", replace_file)
    return finished


def test_a_run_is_read_back_as_it_was_written(whole):
    runs = Runs(whole).require()
    assert [run.setup.run.name for run in runs] == [
        f"{name}/seed-{seed}" for name in PROCEDURES for seed in (0, 1)
    ]
    problem, run = small_problem(), runs[0]
    assert run.folder == whole / "small" / "net" / "ordinary" / "seed-0"
    assert run.complete
    assert run.setup == Setup.from_document(json.loads(json.dumps(run.setup.document())))
    assert run.setup.settings == SETTINGS
    assert run.setup.data.digest == problem.digest
    assert run.setup.data.provenance == {"made": "by a test", "input_type": "float64"}
    assert run.setup.data.test_rows == (5, 3, 0)
    assert run.setup.parameters == 4 * 5 + 5 + 5 * 6 + 6 + 6 * 2 + 2
    np.testing.assert_array_equal(run.moments.covariance, problem.moments.covariance)
    np.testing.assert_array_equal(
        Moments.load(run.folder / "moments.json").mean, problem.moments.mean, strict=True
    )
    head, bias = run.initial
    rounds = run.rounds()
    assert [each.number for each in rounds] == [1, 2, 3]
    assert head.shape == rounds[-1].head.shape == (2, 6)
    assert bias.shape == (2,)
    assert rounds[0].returned_heads.shape == (3, 2, 6)
    np.testing.assert_allclose(
        np.einsum("m,mij->ij", run.moments.client_weights, rounds[1].returned_heads),
        rounds[1].head,
        atol=1e-15,
    )
    assert np.isnan(rounds[0].test_mse).all(axis=1).tolist() == [False, False, True]
    assert run.model()["backbone.0.weight"].shape == (3, 5, 4)
    account = run.account
    assert account.stack == 4
    assert len(account.seconds) == 3
    assert account.seconds_per_run == sum(account.seconds) / 4
    assert account.peak_memory > 1e7
    assert set(account.versions) == {"fedgram", "torch", "numpy", "python"}


def test_runs_are_read_without_torch_and_duckdb(whole):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'duckdb', 'matplotlib', 'pandas']))\n"
        "from pathlib import Path; from fedgram.runs import Runs; from fedgram.runs.measure import measure\n"
        f"print(len([measure(run) for run in Runs(Path({str(whole)!r}))]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "4", done.stderr


def test_a_kill_between_any_two_files_loses_nothing(whole_of_seed_0, tmp_path, monkeypatch):
    files = 6 + 5 + 5 + 6  # start; two rounds with a checkpoint; a last one with models
    assert len([path for path in whole_of_seed_0.rglob("*") if path.is_file()]) == files - 2 * 3 - 2
    for stop_at in range(0, files, 4):
        folder = tmp_path / str(stop_at)
        with monkeypatch.context() as patch:
            finished = replacing(patch, stop_at=stop_at, problem=Killed())
            with pytest.raises(Killed):
                trained(folder, seeds=[0])
            assert len(finished) == stop_at
        trained(folder, seeds=[0])
        assert_same_contents(whole_of_seed_0, folder)


SCRIPT = """
import os, signal, sys
from pathlib import Path
from tests.helpers.small_runs import trained

moments = sys.argv[2:]
children = []
for moment in moments:  # one import for all
    child = os.fork()
    if not child:
        break
    children.append(os.waitpid(child, 0)[1])
if len(children) == len(moments):
    print(*children)
    sys.exit()
folder = Path(sys.argv[1], moment)
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
real = os.replace

def replaced(temporary, path):
    if moment == "before the checkpoint" and "stack-" in path.name and (folder / "seen").exists():
        die()
    if "stack-" in path.name:
        (folder / "seen").touch()
    real(temporary, path)

os.replace = replaced
in_a_round = lambda now: moment == "in a round" and (now.round, now.epoch) == (2, 1)
trained(folder, on_epoch=lambda now: in_a_round(now) and die())
"""


MOMENTS = ("in a round", "before the checkpoint")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of processes that were killed at each of the MOMENTS."""
    root = tmp_path_factory.mktemp("killed")
    for moment in MOMENTS:
        (root / moment).mkdir()
    command = [sys.executable, "-c", SCRIPT, str(root), *MOMENTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    statuses = [int(status) for status in done.stdout.split()]
    assert [os.waitstatus_to_exitcode(each) for each in statuses] == [-signal.SIGKILL] * 2, done.stderr
    return root


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_that_is_killed_goes_on_bit_for_bit(whole, killed, moment):
    folder = killed / moment
    (folder / "seen").unlink()
    assert list(folder.rglob("stack-*.safetensors"))
    temporary = list(folder.rglob("*.tmp"))
    assert len(temporary) == (moment == "before the checkpoint")
    stored = [run.account.rounds for run in Runs(folder)]
    assert stored == ([1] * 4 if moment == "in a round" else [2] * 4)
    said = []
    trained(folder, on_warning=said.append)
    assert said == ["Resuming 4 runs after round 1."]
    assert_same_contents(whole, folder)
    assert not list(folder.rglob("*.tmp")), "temporary files of a killed process are removed"


def test_a_full_disk_stops_with_a_sentence_and_spoils_nothing(whole_of_seed_0, tmp_path, monkeypatch):
    for stop_at in (0, 7, 10, 20):  # moments, a manifest, a checkpoint, a model
        folder = tmp_path / str(stop_at)
        with monkeypatch.context() as patch:
            replacing(patch, stop_at=stop_at, problem=OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(InputError, match=r"Cannot write .*No space left.*repeat the command"):
                trained(folder, seeds=[0])
        assert not list(folder.rglob("*.tmp"))
        for run in Runs(folder):
            assert len(run.rounds()) == run.account.rounds
        trained(folder, seeds=[0])
        assert_same_contents(whole_of_seed_0, folder)


def test_a_disk_that_is_full_while_arrays_are_written(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"Cannot write '.*': .*File too large"):
            tensor_files.write_arrays(tmp_path / "file", {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"Cannot write .*Not a directory"):
        trained(tmp_path / "file")


def test_a_run_that_another_process_trains_is_left_to_it(whole, tmp_path):
    def again(now):
        if (now.round, now.epoch) == (1, 1):
            with pytest.raises(InputError, match=r"Another process writes to '.*'\. Wait for it"):
                trained(tmp_path / "runs")

    trained(tmp_path / "runs", on_epoch=again)
    assert_same_contents(whole, tmp_path / "runs")
    trained(tmp_path / "runs")  # which is free again


def test_where_the_file_system_has_no_locks_nobody_is_kept_out(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    (run,) = trained(tmp_path, ["ordinary"], [0])
    assert run.complete


def test_other_settings_are_refused_field_by_field(whole):
    other = replace(SETTINGS, epochs=3, penalty=Penalty(0.01, 0.02))
    with pytest.raises(InputError) as refused:
        trained(whole, settings=other)
    assert "settings.epochs is 2 there and 3 here" in refused.value.message
    assert "settings.penalty.head is 0.01 there and 0.02 here" in refused.value.message
    assert "batch" not in refused.value.message
    assert "weights" not in refused.value.message
    assert refused.value.field == "settings.epochs"
    words = r"data.digest differs \(other rows\); data.train_rows is 24, 20, 16 there and 23, 21, 16 here"
    with pytest.raises(InputError, match=words):
        trained(whole, problem=small_problem(rows=(23, 21, 16)))
    moved = replace(small_problem(rows=(23, 21, 16)), provenance={"inputs": ["a", "c"]})
    with pytest.raises(InputError, match=r"data.provenance.inputs is None there and a, c here"):
        trained(whole, problem=moved)
    renamed = replace(small_problem(), provenance={"inputs": ["a", "c"], "file": "elsewhere"})
    with pytest.raises(InputError, match=r"data.provenance.inputs is None there and a, c here") as refused:
        trained(whole, problem=renamed)  # equal rows of other columns
    assert "elsewhere" not in refused.value.message
    other_net = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    with pytest.raises(InputError, match=r"parameters is 75 there and 86 here; network differs"):
        train(small_problem(), other_net, ["ordinary"], [0], SETTINGS, folder=whole, backbone_name="net")


def test_strides_do_not_matter(tmp_path):
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)
    tensor_files.write_arrays(tmp_path / "a", {"a": array, "scalar": np.array(3)})
    read = tensor_files.read_arrays(tmp_path / "a")
    np.testing.assert_array_equal(read["a"], array)
    assert read["scalar"].shape == ()


def test_temporary_files_of_other_files_are_left_to_their_writers(tmp_path):
    left = [tmp_path / f".{name}.0123abcd.tmp" for name in ("a[1]", "a1", "b")]
    for path in left:
        path.touch()
    tensor_files.write_arrays(tmp_path / "a[1]", {"a": np.zeros(1)})
    assert [path.exists() for path in left] == [False, True, True]


def test_documents_hold_only_numbers_that_json_has(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        tensor_files.write_document(tmp_path / "document", {"error": float("nan")})
    assert not list(tmp_path.iterdir())


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match="No runs found in"):
        Runs(tmp_path).require()
    run = exact_run(tmp_path, rounds=2)
    run.save()  # with the checksums of its rounds
    (run.folder / "round-01.safetensors").write_bytes(b"not arrays")
    with pytest.raises(InputError, match=r"Cannot read '.*round-01.*\. Restore the file, or delete"):
        run.rounds()
    for name, read in (("round-01", run.rounds), ("model", run.model)):
        shutil.copy(run.round_path(0), run.folder / f"{name}.safetensors")
        with pytest.raises(
            InputError, match=rf"{name}\.safetensors' has other arrays than its name says\. Restore"
        ):
            read()
    (reread,) = Runs(tmp_path).require()
    with pytest.raises(InputError, match=r"round-01\.safetensors' is not the file that the manifest names\."):
        reread.rounds()
    manifest = run.folder / "manifest.json"
    whole = without_checksums(manifest)
    setup = whole["setup"]
    for damaged in ({}, setup | {"data": None}, setup | {"settings": setup["settings"] | {"features": -3}}):
        manifest.write_text(json.dumps(whole | {"setup": damaged}))
        with pytest.raises(InputError, match=r"This version cannot read '.*manifest\.json'"):
            Runs(tmp_path).require()
    manifest.write_text('{"format": "fedgram-run/1", ')
    with pytest.raises(InputError, match=r"manifest.json' is not complete JSON: .*\. Restore the file, or"):
        Runs(tmp_path).require()
    for others in ({"experiment": "another program's"}, ["another program's"]):
        manifest.write_text(json.dumps(others))
        with pytest.raises(InputError, match="No runs found in"):
            Runs(tmp_path).require()


def without_checksums(manifest) -> dict:
    """Read a manifest as fedgram 0.1 would have written it."""
    document = json.loads(manifest.read_text())
    return {key: value for key, value in document.items() if key not in ("files", "sha256")}


def test_runs_of_earlier_versions_are_read_and_those_of_later_ones_refused(tmp_path):
    manifest = exact_run(tmp_path, rounds=1).folder / "manifest.json"
    document = without_checksums(manifest)
    del document["setup"]["network"]
    manifest.write_text(json.dumps(document))
    (run,) = Runs(tmp_path).require()
    assert run.setup.network == "not recorded"
    document["setup"]["settings"]["momentum"] = 0.9
    manifest.write_text(json.dumps(document))
    with pytest.raises(InputError, match="This version cannot read"):
        Runs(tmp_path).require()


def test_names_that_no_file_may_have(tmp_path):
    run = exact_run(tmp_path, rounds=1)
    named = replace(
        run.setup, backbone="<lambda>/../x", data=replace(run.setup.data, name="../own data: a*b")
    )
    folder = Runs(tmp_path).folder_of(named)
    assert folder == tmp_path / "own-data-a-b" / "lambda-..-x" / "ordinary" / "seed-0"
    assert Runs(tmp_path).folder("..", "?", run.setup.run).parts[-4:-2] == ("unnamed", "unnamed")


def test_settings_survive_the_manifest():
    settings = TrainConfig(learning_rate=1 / 3, penalty=Penalty(0.1, 1e-3))
    procedure = Procedure.parse("proximal=0.5+private")
    setup = Setup(procedure, 3, settings, "net", 7, "a0", summarize(small_problem()))
    assert Setup.from_document(json.loads(json.dumps(setup.document()))) == setup


def test_rows_are_counted_by_client_also_where_none_are_for_testing():
    for problem, tested in ((small_problem(), (5, 3, 0)), (replace(small_problem(), test={}), (0, 0, 0))):
        data = summarize(problem)
        assert (data.train_rows, data.test_rows) == ((24, 20, 16), tested)
