"""Experiment names select the command that runs them."""

from pathlib import Path

import pytest

from fedgram.cli import reproduce
from tests.helpers.command import fedgram

DNN = ["dnn-main", "dnn-rho"]


@pytest.fixture
def started(monkeypatch):
    """What each command would run."""
    calls = []

    def run_ufm(names, out, quick, fresh=False):
        calls.append(("ufm", reproduce._expand(names, "ufm"), out, quick, fresh))
        return []

    def run_networks(names, request):
        found = reproduce._expand(names, "networks")
        calls.append(("networks", found, request.scale.name, request.settings, request.seeds))
        return []

    monkeypatch.setattr(reproduce, "_run_ufm", run_ufm)
    monkeypatch.setattr(reproduce, "_run_networks", run_networks)
    return calls


@pytest.mark.parametrize(
    ("typed", "names", "options"),
    [
        ("ufm --quick", 6, (Path("results"), True, False)),
        ("--quick ufm", 6, (Path("results"), True, False)),
        ("ufm-instance", ["ufm-instance"], (Path("results"), False, False)),
        ("ufm ufm-gap ufm-gap --fresh --out o", ["ufm-gap"], (Path("o"), False, True)),
        ("dnn-main --scale smoke", ["dnn-main"], ("smoke", (), ())),
        ("networks dnn-main dnn-rho --seeds 0,3", DNN, ("paper", (), (0, 3))),
        (
            "--setting hopper,walker --setting walker dnn-main dnn-rho",
            DNN,
            ("paper", ("hopper", "walker"), ()),
        ),
        ("beyond --scale smoke", 2, ("smoke", (), ())),
        ("dnn-main --out all", ["dnn-main"], ("paper", (), ())),
        ("--out ufm dnn-main", ["dnn-main"], ("paper", (), ())),
        ("networks dnn", 8, ("paper", (), ())),
    ],
)
def test_names_select_the_command(started, typed, names, options):
    assert fedgram("reproduce", *typed.split()) == (0, "", "")
    ((_, found, *given),) = started
    assert found == names if isinstance(names, list) else len(found) == names
    assert tuple(given) == options


@pytest.mark.parametrize("typed", ["all --quick --scale smoke", "--scale smoke all --quick"])
def test_all_runs_both(started, typed):
    assert fedgram("reproduce", *typed.split()).returncode == 0
    assert [(command, len(names)) for command, names, *_ in started] == [("ufm", 6), ("networks", 10)]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Name an experiment. Run 'fedgram reproduce list'"),
        ("ufm-gap dnn-main", "'dnn-main' is not a 'ufm' experiment. Run 'fedgram reproduce dnn-main'."),
        ("networks ufm-gap", "'ufm-gap' is not a 'networks' experiment. Run 'fedgram reproduce ufm-gap'."),
        ("networks", "Missing argument"),
        ("--quick", "No such option: --quick"),
        ("--list", "No such option: --list"),
        ("dnn-mein", "did you mean 'dnn-main'? Run 'fedgram reproduce list' to see all names."),
    ],
)
def test_wrong_names_and_options(started, typed, words):
    code, out, err = fedgram("reproduce", *typed.split())
    assert (code, out, started) == (2, "", [])
    assert words in err


def test_a_report_does_not_replace_a_table(tmp_path):
    (tmp_path / "rows.csv").write_text("a\n1\n")
    code, out, err = fedgram("report", "-o", "rows.csv", cwd=tmp_path)
    assert (code, out, err) == (2, "", "fedgram: A report must end in .html: 'rows.csv'.\n")
    assert (tmp_path / "rows.csv").read_text() == "a\n1\n"


def test_a_report_needs_a_folder_before_it_loads_results(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgram.paper.report.page.write_report", None)  # not called
    code, out, err = fedgram("report", "-o", "none/r.html", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err == "fedgram: Cannot write 'none/r.html': its folder does not exist. Create it.\n"


def test_list_and_help(tmp_path):
    assert "ufm-instance" in fedgram("reproduce", "list", "--out", tmp_path).stdout
    for command, flag in (("ufm", "--fresh"), ("networks", "--engine")):
        shown = fedgram("reproduce", command, "--help").stdout
        assert flag in shown
        assert ("--quick" in shown) == (command == "ufm")
