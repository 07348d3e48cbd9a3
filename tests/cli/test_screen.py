"""What commands print: streams of any encoding, control characters, one table of errors, progress."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from fedgram._util.encodings import replace_missing
from fedgram.cli import main
from fedgram.cli.progress import ProgressBar, progress_bar
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.data.tables.read_rows import TableSpec, read_table
from fedgram.display import run_sentences, run_tables
from fedgram.display.training_table import print_training
from fedgram.runs import Runs
from fedgram.runs.compare import compare_runs
from fedgram.runs.held_out import HeldOutErrors
from fedgram.runs.procedure import Procedure
from fedgram.runs.train_config import TrainConfig
from fedgram.training import Status, predict_rows, train
from fedgram.training.progress import show_progress
from tests.helpers.command import fedgram
from tests.helpers.small_runs import SETTINGS, exact_run, net, small_problem, trained

WILD = "\x1b[31mred\n:smile:"
TINY = ["--backbone", "resmlp-small", "--features", "6", "--rounds", "1", "--epochs", "1", "--batch", "1000"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with a wild client name, and two runs trained on it."""
    made = tmp_path_factory.mktemp("screen")
    a, b = np.random.default_rng(0).standard_normal((2, 60))
    names = np.resize(np.array([WILD, "λ"], dtype=object), 60)
    pd.DataFrame({"site": names, "a": a, "b": b, "µg": a + b, "z": a - b}).to_parquet(made / "own.parquet")
    problem = read_table(str(made / "own.parquet"), TableSpec("site", ["a", "b"], ["µg", "z"]), seed=0)
    config = TrainConfig(rounds=1, epochs=1, features=6, batch=1000)
    train(problem, "resmlp-small", ["ordinary", "local"], [0], config, folder=made / "runs")
    return made


COMMANDS = [
    ["explain", "own.parquet", "--client", "site", "--targets", "µg,z", "--resamples", "0"],
    ["predict", "own.parquet", "--client", "site", "--targets", "µg,z", "--rounds", "2"],
    ["correct", "own.parquet", "--client", "site", "--targets", "µg,z"],
    ["train", "own.parquet", "--client", "site", "--inputs", "a,b", "--targets", "µg,z",
     "--procedure", "ordinary,local", *TINY],
    ["runs", "list", "runs"], ["runs", "show", "runs"], ["runs", "compare", "runs"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_names_are_escaped_and_any_encoding_is_enough(folder, command):
    code, out, err = fedgram(*command, cwd=folder, encoding="ascii")
    assert code == 0, err
    assert out
    assert "\x1b" not in out + err
    if command[0] != "runs":
        assert "\\x1b[31mred\\n:smile:" in out


def test_errors_escape_control_characters(folder):
    arguments = ["runs/own/resmlp-small/local", "own.parquet", "--site", "\x1b[2J"]
    code, _, err = fedgram("runs", "predict", *arguments, cwd=folder)
    assert code == 2
    assert "The run has no client '\\x1b[2J'. Its clients are '\\x1b[31mred\\n:smile:', 'λ'." in err


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    "command",
    [
        ["train", "beijing-stations", *TINY, "--seeds", "2"],
        ["advise", "beijing-stations", "--rounds", "1", "--epochs", "1", "--seeds", "1"],
        ["explain", "own.parquet", "--client", "site", "--targets", "µg,z"],
        ["runs", "compare", "runs"],
        ["data", "list"],
    ],
    ids=lambda command: command[0],
)
def test_a_process_with_another_encoding_ends_well(folder, command, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    script = "from fedgram.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode(encoding)
    assert done.stdout


def test_characters_that_an_encoding_lacks_are_replaced():
    assert replace_missing("G_⋆ ± R²", "ascii") == "G_* +- R^2"
    assert replace_missing("G_⋆ ± R²", "cp1252") == "G_* ± R²"
    assert replace_missing("G_⋆ ≼ Σ p_m G_m, √10, η", "ascii") == "G_* <= sum p_m G_m, sqrt 10, eta"
    assert replace_missing("北 \N{GRINNING FACE}", "ascii") == "\\u5317 \\U0001f600"


@pytest.mark.parametrize("command", [["--version"], ["data", "list"]], ids=["typer", "rich"])
def test_a_closed_pipe_is_no_error(command):
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedgram", *command], stdout=write, stderr=subprocess.PIPE, timeout=300
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_lists_commands_in_the_order_of_the_readme():
    readme = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    named = dict.fromkeys(re.findall(r"^\| `fedgram (\w+)", readme, re.MULTILINE))
    shown = re.findall(r"^│ (\w+) ", fedgram("--help").stdout.partition("Commands")[2], re.MULTILINE)
    assert shown == list(named)


# ---- the table of errors ----


def printed(runs, **options):
    out = Console(file=io.StringIO(), width=160)
    print_training(out, runs, **options)
    return out.file.getvalue()


def test_errors_by_site_and_target_are_those_of_predictions(tmp_path):
    """Also of a centralized run, whose rows are one client's."""
    problem = small_problem()
    runs = trained(tmp_path, ["private+centered", "centralized"], [0])
    for run in runs:
        rows = {name: split.inputs for name, split in problem.test.items() if len(split)}
        predicted = predict_rows(run, rows, net)
        errors = HeldOutErrors.from_document(run.account.tested)
        assert errors.rows.tolist() == [5, 3, 0]
        for m, name in enumerate(rows):
            square = (predicted[name] - problem.test[name].targets) ** 2
            np.testing.assert_allclose(errors.mse[m], square.mean(axis=0), rtol=1e-5)
        assert np.isnan(errors.mse[2]).all()
        truth = np.concatenate([split.targets for split in problem.test.values()])
        everything = np.concatenate(list(predicted.values()))
        residual = ((everything - truth) ** 2).sum(axis=0) / ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
        np.testing.assert_allclose(errors.total_r2, 1 - residual, rtol=1e-5)


def test_one_table_has_errors_and_distances(tmp_path):
    runs = trained(tmp_path, ["ordinary", "local"], [0, 1])
    said = printed(runs)
    assert said.count("procedure") == 1
    errors = [HeldOutErrors.from_document(run.account.tested) for run in runs[:2]]
    rmse = np.sqrt([each.mse[0, 1] for each in errors])
    assert f"{rmse.mean():.3g} ± {rmse.std(ddof=1):.1g}" in said
    (first,) = (line for line in said.splitlines() if line.startswith(" ordinary"))
    assert re.search(r"\d% +\S+% \(\S+%\) *$", first)
    assert "'local' is not compared with the limit of averaged heads: nothing is averaged." in said


def test_standardized_runs_have_errors_in_the_targets_own_units(folder):
    run, _ = Runs(folder / "runs" / "own").require()
    provenance = run.setup.data.provenance | {"mean_and_deviation": {"z": [5.0, 1000.0]}}
    setup = replace(run.setup, data=replace(run.setup.data, provenance=provenance))
    said = printed([replace(run, setup=setup)])
    rmse = 1000 * np.sqrt(HeldOutErrors.from_document(run.account.tested).mse[1, 1])
    assert "in the targets' own units" in said
    assert f"{float(f'{rmse:.3g}'):,.0f}" in said  # 1,160, not 1.16e+03


def test_ten_sites_are_shown_unless_all_are_asked_for(tmp_path):
    rng = np.random.default_rng(0)
    splits = {f"s{m}": Split(rng.standard_normal((8, 4)), rng.standard_normal((8, 2))) for m in range(12)}
    problem = Problem("many", "GENERATED", splits, splits)
    runs = trained(tmp_path, ["local"], [0], replace(SETTINGS, rounds=1, epochs=1), problem)
    assert "s9" in printed(runs)
    assert "s10" not in printed(runs)
    assert "  and 2 more sites (--all shows them)" in printed(runs)
    assert "s11" in printed(runs, all_sites=True)
    assert "--all" not in printed(runs, all_sites=True)


def test_a_run_without_errors_by_target_is_shown(tmp_path):
    said = printed([exact_run(tmp_path, rounds=1)])
    assert "No test errors: the runs have no errors of single targets." in said
    assert "none" in said


def test_a_run_without_test_rows_is_shown(tmp_path):
    problem = replace(small_problem(), test={})
    runs = trained(tmp_path, ["local"], [0], replace(SETTINGS, rounds=1, epochs=1), problem)
    assert "No test errors: there are no test rows." in printed(runs)


def test_what_was_chosen_is_shown_without_test_rows(tmp_path, capsys):
    run = exact_run(tmp_path, "full-model+moment-head", rounds=1)
    setup = replace(run.setup, data=replace(run.setup.data, test_rows=(0, 0, 0)))
    chosen = {"round": 1, "ridge": 0.1, "test_mse": [None, None, None]}
    run = replace(run, setup=setup, account=replace(run.account, chosen=chosen))
    run_tables.print_run(run)
    shown = capsys.readouterr().out
    assert "Chosen on validation rows: round 1, ridge 0.1." in shown
    assert "nan" not in shown
    run_tables.print_comparison([run])
    shown = capsys.readouterr().out
    assert "There are no test errors to compare, and no limits of averaged heads." in shown
    assert "none" not in shown.replace("small, none", "")  # the backbone's name
    assert "nan" not in " ".join(run_sentences.describe_comparison(compare_runs([run])[0]))


# ---- procedures without a limit ----


@pytest.mark.slow
def test_a_figure_of_local_runs_is_drawn(folder, tmp_path):
    code, _, err = fedgram("runs", "compare", folder / "runs", "--figure", tmp_path / "figure.png")
    assert code == 0, err
    only = folder / "runs" / "own" / "resmlp-small" / "local"
    assert fedgram("runs", "compare", only, "--figure", tmp_path / "figure.png").returncode == 0


def test_local_runs_are_not_compared_with_a_limit(folder):
    local = folder / "runs" / "own" / "resmlp-small" / "local"
    (setting,) = json.loads(fedgram("runs", "compare", local, "--json").stdout)["settings"]
    (procedure,) = setting["procedures"]
    assert (procedure["target"], procedure["errors"]) == (None, [])
    assert all(procedure[key] is None for key in ("error", "predicted_gap", "measured_gap", "delta"))
    assert procedure["test_mse"]["mean"] > 0
    assert setting["warnings"] == []  # nothing to compare with
    assert "is not compared" not in fedgram("runs", "compare", local).stdout
    shown = fedgram("runs", "show", local).stdout
    assert "error to" not in shown
    assert "No limit of averaged heads applies: nothing is averaged." in shown
    assert "objective gap" not in shown


@pytest.mark.parametrize(("name", "has_limit"), [
    ("ordinary", True), ("full-model", True), ("corrected+full-model", True), ("centralized", True),
    ("local", False), ("full-model+moment-head", False), ("full-model+moment-head+site-effects", False),
])  # fmt: skip
def test_the_averaged_head_has_a_limit_if_it_is_used(name, has_limit):
    assert bool(Procedure.parse(name).without_limit) != has_limit


# ---- progress ----


def status(epoch):
    return Status((), 1, 1, 1, 1, epoch, 2, 3.0, {}, 1000)


def test_progress_is_shown_in_terminals_and_notebooks_but_not_in_pipes(monkeypatch, capsys):
    with show_progress() as report:
        report(status(1))
    assert capsys.readouterr() == ("", "")

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress() as report:
        report(status(2))
    assert "round 1/1, epoch 2/2, 3 s left, 1 kB" in terminal.getvalue()

    shown = []
    handle = SimpleNamespace(update=lambda bundle, raw: shown.append(bundle["text/plain"]))
    shell = SimpleNamespace(kernel=None)
    display = SimpleNamespace(display=lambda *given, **options: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with show_progress() as report:
        for epoch in (1, 2):
            report(status(epoch))
    assert shown == ["round 1/1, epoch 1/2, 3 s left, 1 kB", "round 1/1, epoch 2/2, 3 s left, 1 kB"]


def test_a_long_training_says_how_far_it_is_in_pipes(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("fedgram.cli.progress.time.monotonic", lambda: clock[0])
    with progress_bar() as progress:
        for step in range(1, 9):
            clock[0] = 10.0 * step
            progress.on_fraction("net", step / 8)
    assert capsys.readouterr().err.splitlines() == ["training net: 50%, 40 s left", "trained net"]


@pytest.mark.parametrize(
    ("kept", "said"),
    [("", "Interrupted."), ("rounds", "Interrupted: rounds are kept. Run the same command to continue.")],
)
def test_ctrl_c_ends_with_one_sentence(monkeypatch, capsys, kept, said):
    def command(**options):
        with progress_bar(kept):
            raise KeyboardInterrupt

    monkeypatch.setattr("fedgram.cli.app.app", command)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err.splitlines() == [f"fedgram: {said}"]


def test_ctrl_c_while_a_table_is_read_ends_with_one_sentence(monkeypatch, capsys):
    def read(*options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgram.cli.load_problem.load_site_problem", read)
    monkeypatch.setattr(sys, "argv", ["fedgram", "advise", "beijing-stations"])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err.splitlines() == ["fedgram: Interrupted."]


def test_a_comparison_of_procedures_shows_the_time_left_in_terminals(monkeypatch):
    clock = [0.0]
    bar = Progress(TextColumn("{task.description}"), get_time=lambda: clock[0])
    progress = ProgressBar(bar)

    def shown(seconds, fraction):
        clock[0] = seconds
        progress.on_fraction("FedAvg", fraction)
        return bar.tasks[0].description

    shown(0.0, 0.01)
    assert [shown(5.0, 0.02), shown(20.0, 0.21)] == ["FedAvg, 8 min left", "FedAvg, 79 s left"]
    # A second network with this name starts again.
    assert shown(600.0, 0.01) == "FedAvg"
    shown(610.0, 0.11)
    assert shown(620.0, 0.21) == "FedAvg, 79 s left"


@pytest.mark.slow
def test_training_in_a_terminal_shows_progress(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    trained(tmp_path, ["ordinary"], [0], settings=SETTINGS)
    assert "epoch 2/2" in terminal.getvalue()
