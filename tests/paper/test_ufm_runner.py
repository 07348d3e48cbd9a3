"""Running experiments: what is kept, what is redone, and how claims are judged."""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedgram import InputError
from fedgram.cli import main
from fedgram.paper.claims import (
    COMPARISONS,
    MEANINGS,
    Claim,
    Measurement,
    compatibility,
    judge,
    judge_all,
    load_claims,
    resolution,
)
from fedgram.paper.draws import FALSE_ALARMS
from fedgram.paper.registry import GROUPS, MODULES, expand_name
from fedgram.paper.storage import digest, read_table, write_table
from fedgram.paper.ufm import runner
from fedgram.paper.ufm.runner import THREADS, run
from tests.helpers.toy_experiment import counted, interrupting, told, toy


def run_here(jobs):
    """Run parts in this process, which is faster."""
    for job in jobs:
        runner._run_one(job.part, job.path, job.settings)
        yield job


@pytest.fixture(autouse=True)
def in_this_process(request, monkeypatch):
    """Run parts here; tests that ask for processes get them."""
    if "processes" not in request.fixturenames:
        monkeypatch.setattr(runner, "_run_all", run_here)


@pytest.fixture
def processes():
    """Parts run in processes of their own."""


def claim(comparison, value=None, tolerance=0.0, **fields):
    return Claim("id", "toy", "here", "something", comparison, value, tolerance, **fields)


@pytest.mark.parametrize(
    ("stated", "ours", "verdict"),
    [
        (claim("equal", 2.0, 0.01), 2.01, "match"),
        (claim("equal", 2.0, 0.01), 2.03, "miss"),
        (claim("equal", -2.0, 0.01), -2.01, "match"),
        (claim("equal", 0.0), 0.0, "match"),
        (claim("equal", 0.0), 1e-300, "miss"),
        (claim("equal", (1.0, 1.0), 0.05), (0.97, 1.06), "miss"),
        (claim("range", (1.0, 2.0)), (1.2, 1.9), "match"),
        (claim("range", (1.0, 2.0)), 2.1, "miss"),
        (claim("range", (1.0, 2.0), 0.1), 2.1, "match"),
        (claim("range", (1.0, 2.0), 0.1), 0.95, "match"),
        (claim("range", (1.0, 2.0)), (0.9, 1.5), "miss"),
        (claim("range", (1.0, 2.0)), (1.5, 2.1), "miss"),
        (claim("range", (-2.0, -1.0), 0.1), (-2.1, -0.95), "match"),
        (claim("bound", 1e-3), 9e-4, "match"),
        (claim("bound", 1e-3), 1.1e-3, "miss"),
        (claim("bound", 1e-3), (9e-4, 1.1e-3), "miss"),
        (claim("bound", -1.0, 0.1), -0.95, "match"),
        (claim("order", 1.0), 3.0, "match"),
        (claim("order", 1.0), 0.32, "match"),
        (claim("order", 1.0), 0.3, "miss"),
        (claim("order", 1.0), 4.0, "miss"),
        (claim("order", (1.0, 10.0)), (0.5, 40.0), "miss"),
        (claim("order", 1.0, factor=1.5), 1.4, "match"),
        (claim("order", 1.0, factor=1.5), 1.6, "miss"),
        (claim("rounding"), -9e-15, "match"),
        (claim("rounding"), 2e-14, "miss"),
        (claim("rounding"), (1e-15, -2e-14), "miss"),
        (claim("rounding", 3e-16), 2.9e-15, "match"),
        (claim("rounding", 3e-16), 3.1e-15, "miss"),
        (claim("rounding", -8e-15), 7e-14, "match"),
        (claim("rounding", -8e-15), 9e-14, "miss"),
        (claim("limit", 1e-10), 9e-11, "match"),
        (claim("limit", 1e-10), (0.0, 2e-10), "miss"),
        (claim("always"), True, "match"),
        (claim("always"), False, "miss"),
        (claim("overall"), False, "miss"),
    ],
)
def test_comparisons(stated, ours, verdict):
    assert judge(stated, Measurement(ours)).verdict == verdict


@pytest.mark.parametrize("comparison", sorted(COMPARISONS))
def test_nan_never_matches(comparison):
    value = (1.0, 2.0) if comparison == "range" else 1.0
    redraws = ((1.0, 2.0, 3.0),) if comparison == "draw" else ()
    if comparison not in ("always", "overall"):
        assert judge(claim(comparison, value, 10.0), Measurement(float("nan"), redraws)).verdict == "miss"


def draws(seed, count=32, scale=0.1):
    """Lognormal draws, as tuples."""
    return tuple(np.exp(scale * np.random.default_rng(seed).standard_normal(count)))


def test_ours_and_the_papers_are_two_draws_from_one_distribution():
    found = judge(claim("draw", 1.05), Measurement(0.95, (draws(0),)))
    assert found.verdict == "compatible"
    assert found.reason.startswith("p = 0.")
    # The distribution has a deviation of 10 %: five of them are too far, for the paper's number and for ours.
    for paper, ours in ((1.65, 1.0), (1.0, 1.65), (0.6, 1.0), (1.0, 0.6)):
        missed = judge(claim("draw", paper), Measurement(ours, (draws(0),)))
        assert missed.verdict == "miss"
        assert missed.reason.startswith("incompatible, p = ")
    assert judge(claim("draw", 1.65, 0.4), Measurement(1.0, (draws(0),))).verdict == "compatible"
    ends = Measurement((1.0, 5.0), (draws(0), tuple(5 * np.array(draws(1)))))
    assert judge(claim("draw", (1.0, 5.0)), ends).verdict == "compatible"
    assert judge(claim("draw", (1.0, 9.0)), ends).verdict == "miss"


def test_the_p_value_of_a_draw_is_that_of_a_t_test():
    redraws = np.array(draws(3, 9))
    both = [ttest_1samp_of_one_more(np.log(redraws), np.log(number)) for number in (1.1, 0.8)]
    found = compatibility(claim("draw", 1.1), Measurement(0.8, (tuple(redraws),)))
    assert found == pytest.approx(1 - (1 - min(both)) ** 2)


def ttest_1samp_of_one_more(sample, number):
    """Two-sided p-value of one more observation, by SciPy's two-sample test with a sample of one."""
    statistic = (number - sample.mean()) / (sample.std(ddof=1) * np.sqrt(1 + 1 / len(sample)))
    return 2 * stats.t.sf(abs(statistic), len(sample) - 1)


@pytest.mark.parametrize("count", [4, 16, 128])
def test_false_alarms_are_as_rare_as_stated(count):
    rng = np.random.default_rng(count)
    sample = np.exp(rng.standard_normal((4000, count + 2)))
    alarms = [
        judge(claim("draw", paper), Measurement(ours, (tuple(redraws),))).verdict == "miss"
        for paper, ours, *redraws in sample[: 4000 if count < 100 else 1000]
    ]
    # With few redraws both numbers share their error, and alarms are rarer.
    assert 0.2 * FALSE_ALARMS < np.mean(alarms) < 1.6 * FALSE_ALARMS


def test_counts_and_signs_are_compared_without_logarithms():
    assert judge(claim("draw", 0.0), Measurement(1, ((0.0, 2.0, 1.0, 3.0),))).verdict == "compatible"
    assert judge(claim("draw", 60.0), Measurement(1, ((0.0, 2.0, 1.0, 3.0),))).verdict == "miss"
    assert judge(claim("draw", 1.0), Measurement(1.0, ((1.0, 1.0, 1.0),))).verdict == "compatible"
    assert judge(claim("draw", 1.1), Measurement(1.0, ((1.0, 1.0, 1.0),))).verdict == "miss"


def test_a_draw_without_redraws_is_refused():
    with pytest.raises(ValueError, match="needs redraws"):
        COMPARISONS["draw"](claim("draw", 1.0), 1.0)


@pytest.mark.parametrize(
    ("stated", "ours", "verdict"),
    [
        (claim("always"), False, "miss"),  # a counterexample stays one
        (claim("bound", 1.0), 1.1, "miss"),
        (claim("limit", 1.0), 1.1, "miss"),
        (claim("rounding"), 1e-12, "miss"),
        (claim("overall"), False, "partial"),  # medians may move
        (claim("equal", 1.0, 0.05), 1.10, "partial"),
        (claim("equal", 1.0, 0.05), 1.20, "miss"),
        (claim("equal", (1.0, 1.0), 0.05), (1.0, 1.2), "miss"),
        (claim("equal", 1.0), 0.9, "miss"),  # a share of all runs
        (claim("order", 1.0), 9.0, "partial"),
        (claim("order", 1.0), 11.0, "miss"),
        (claim("order", (1.0, 2.0)), (1.0, 21.0), "miss"),
        (claim("range", (1.0, 2.0), 0.1), (1.0, 2.5), "partial"),
        (claim("range", (1.0, 2.0), 0.1), (1.0, 2.7), "miss"),
    ],
)
def test_a_part_of_the_runs_can_miss(stated, ours, verdict):
    found = judge(stated, Measurement(ours, run=4, needed=96))
    assert (found.verdict, found.agrees) == (verdict, False)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(2.5, "partial"), (0.4, "partial"), (5.0, "miss"), (0.2, "miss")]
)
def test_a_partial_value_may_differ_by_a_further_factor(ours, verdict):
    """An extreme of fewer instances is another one, but an error of a factor 10 is none of chance."""
    part = Measurement(ours, (draws(0),), run=4, needed=96)
    found = judge(claim("draw", 1.05), part)
    assert found.verdict == verdict
    words = "compatible with further draws" if verdict == "partial" else "incompatible"
    assert found.reason.startswith(f"4 of 96 runs; {words}, p = ")
    assert judge(claim("draw", 2.0), part).verdict == "miss"


def test_a_draw_notices_factors_above_its_resolution():
    redraws = draws(3, 9)
    typical = float(np.exp(np.log(redraws).mean()))
    found = resolution(claim("draw", typical), Measurement(typical, (redraws,)))
    assert 1.2 < found < 2.0
    for factor in (found, 1 / found):
        just, above = typical * factor**0.999, typical * factor**1.001
        assert judge(claim("draw", just), Measurement(typical, (redraws,))).verdict == "compatible"
        assert judge(claim("draw", above), Measurement(typical, (redraws,))).verdict == "miss"
    two = (redraws, tuple(np.square(redraws)))
    assert resolution(claim("draw"), Measurement((1.0, 1.0), two)) > found**2  # of the less sensitive number
    assert resolution(claim("draw"), Measurement(1.0, ((-1.0, 2.0, 3.0),))) == np.inf
    part = Measurement(typical, (redraws,), run=1, needed=9)
    wider = resolution(claim("draw", typical), part)
    for factor, verdict in ((wider**0.999, "partial"), (wider**1.001, "miss")):
        assert judge(claim("draw", typical), replace(part, value=typical * factor)).verdict == verdict
    reason = judge(claim("draw", typical), Measurement(typical, (redraws,))).reason
    assert reason.endswith(f"notices factors above {found:.2g}")


def test_incomplete_and_missing_measurements():
    for ours, words in ((3.0, "agrees"), (3.5, "disagrees")):
        part = judge(claim("equal", 3.0, 0.1), Measurement(ours, run=40, needed=200))
        assert (part.verdict, part.reason) == ("partial", f"40 of 200 runs; {words} so far")
        assert part.agrees == (words == "agrees")
    inside = judge(claim("order", (1.0, 100.0)), Measurement((20.0, 20.0), run=1, needed=9))
    assert (inside.verdict, inside.reason) == ("partial", "1 of 9 runs; within an order of the paper's range")
    assert inside.agrees
    assert judge(claim("order", (1.0, 100.0)), Measurement((2.0, 400.0), run=1, needed=9)).agrees is False
    elsewhere = judge(claim("equal", 3.0), Measurement(3.0, run=0, needed=9, about="smoke scale"))
    assert (elsewhere.verdict, elsewhere.reason) == ("not comparable", "smoke scale")
    assert elsewhere.agrees is None
    told = judge(claim("equal", 3.0), Measurement(3.0, about="on other data"))
    assert (told.verdict, told.reason) == ("match", "on other data")
    for stand_ins, words in ((0, ""), (2, "2 of them on stand-in data"), (3, "all on stand-in data")):
        assert judge(claim("equal", 3.0), Measurement(3.0, run=3, stand_ins=stand_ins)).reason == words
    assert judge(claim("equal", 3.0), None).verdict == "not run"
    with pytest.raises(ValueError, match="No claim is called other"):
        judge_all([claim("equal", 3.0)], {"other": Measurement(1.0)})


LARGEST = {"direction error": 2**0.5, "part of the objective": 1.0, "Share of": 1.0}
"""Largest possible values of bounded quantities, by words of their claims."""


@pytest.mark.parametrize("stated", load_claims(), ids=lambda stated: stated.id)
def test_every_number_can_be_missed(stated):
    """No claim admits every value that its quantity can have."""
    most = next((limit for words, limit in LARGEST.items() if words in stated.says), 1e9)
    if stated.value is None:
        return
    shape = (lambda x: (x, x)) if isinstance(stated.value, tuple) else (lambda x: x)
    redraws = tuple((each, 1.01 * each, 0.99 * each) for each in np.atleast_1d(stated.value).tolist())
    verdicts = {
        judge(stated, Measurement(shape(value), redraws if stated.comparison == "draw" else ())).verdict
        for value in (most, 0.0)
    }
    assert "miss" in verdicts


def test_claims_are_complete_and_well_formed():
    claims = load_claims()
    assert len({each.id for each in claims}) == len(claims) >= 60
    assert {each.experiment for each in claims} == {*GROUPS["ufm"], *GROUPS["dnn"]}
    for each in claims:
        assert each.value is not None or each.comparison in ("always", "overall", "rounding")
        assert each.value is None or each.comparison not in ("always", "overall")
        assert each.where
        assert each.says


def test_every_comparison_is_explained():
    assert list(MEANINGS) == list(COMPARISONS)


def test_tables_keep_every_value_and_notice_damage(tmp_path):
    table = {
        "x": np.array([1.0, -0.0, np.inf, 5e-324]),
        "n": np.arange(4),
        "name": np.array(["a", "é", "", "d'"]),
    }
    path = tmp_path / "it's a table.parquet"
    write_table(path, table, {"seed": 1, "why": "it's"})
    read = read_table(path, {"seed": 1, "why": "it's"})
    assert digest(read) == digest(table)
    assert read_table(path, {"seed": 2}) is None
    assert read_table(tmp_path / "other.parquet") is None
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"it's a table\.parquet' is damaged"):
        read_table(path)


def test_finished_parts_are_skipped_and_fresh_redoes_them(tmp_path):
    log = tmp_path / "log"
    for fresh, lines in ((False, 2), (False, 2), (True, 4)):
        run([toy(log)], tmp_path / "out", "full", fresh=fresh)
        assert len(log.read_text().split()) == lines


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_parts_have_one_thread_each_and_the_environment_stays_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before, log = dict(os.environ), tmp_path / "log"
    run([toy(tmp_path / "others", told=partial(told, log=str(log)))], tmp_path / "out", "full")
    assert log.read_text().split() == ["1"] * len(THREADS)
    assert dict(os.environ) == before


def test_other_settings_redo_only_what_they_change(tmp_path):
    log = tmp_path / "log"
    run([toy(log)], tmp_path, "full")
    run([toy(log, two=partial(counted, log=str(log), start=7))], tmp_path, "full")
    assert log.read_text().split() in (["0", "1", "7"], ["1", "0", "7"])


def test_a_damaged_file_is_named_and_only_it_is_redone(tmp_path):
    log, said = tmp_path / "log", []
    run([toy(log)], tmp_path, "full")
    (tmp_path / "full" / "toy" / "two.parquet").write_bytes(b"PAR1 nonsense")
    run([toy(log)], tmp_path, "full", on_warning=said.append)
    assert "two.parquet' is damaged. Its part runs again." in said[0]
    assert sorted(log.read_text().split()) == ["0", "1", "1"]


@pytest.mark.usefixtures("processes")
def test_results_are_the_same_after_an_interruption(tmp_path, request, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    log = tmp_path / "log"
    stop = partial(interrupting, log=str(log), start=1, parent=os.getpid())
    with pytest.raises(KeyboardInterrupt):
        run([toy(log, two=stop)], tmp_path / "a", "full")
    monkeypatch.setattr(runner, "_run_all", run_here)
    run([toy(log)], tmp_path / "a", "full")
    run([toy(log)], tmp_path / "b", "full")
    for name in ("one", "two"):
        first, second = (read_table(tmp_path / side / "full" / "toy" / f"{name}.parquet") for side in "ab")
        assert digest(first) == digest(second)
    assert not list((tmp_path / "a" / "full" / "toy").glob(".*"))


def test_only_temporary_files_of_killed_runs_are_removed(tmp_path):
    run([toy(tmp_path / "log")], tmp_path, "full")
    folder = tmp_path / "full" / "toy"
    kept = [folder / name for name in (".gitignore", ".notes.tmp", ".two.parquet.swp")]
    for path in (*kept, folder / ".two.parquet.0123abcd.tmp", folder / ".figure.png.89abcdef.draft"):
        path.touch()
    run([toy(tmp_path / "log")], tmp_path, "full")
    assert sorted(folder.glob(".*")) == sorted(kept)


def test_an_experiment_that_another_process_runs_is_left_to_it(tmp_path):
    experiments, refused = [toy(tmp_path / "log")], []

    def again(name):
        with pytest.raises(InputError, match="Another process writes to"):
            run(experiments, tmp_path, "full")
        refused.append(name)

    run(experiments, tmp_path, "full", on_part=again)
    assert len(refused) == 2
    run(experiments, tmp_path, "full")  # which is free again


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "table.parquet").mkdir()
    with pytest.raises(IsADirectoryError):
        write_table(tmp_path / "table.parquet", {"x": np.arange(3)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


def test_manifest_says_what_made_the_figure(tmp_path):
    (outcome,) = run([toy(tmp_path / "log")], tmp_path, "quick")
    manifest = json.loads((tmp_path / "quick" / "toy" / "manifest.json").read_text())
    assert manifest["scale"] == "quick"
    assert manifest["data"] == "GENERATED"
    assert manifest["parts"]["two"]["settings"]["start"] == 1
    table = read_table(tmp_path / "quick" / "toy" / "two.parquet")
    assert manifest["parts"]["two"]["sha256"] == digest(table)
    assert set(manifest["versions"]) >= {"fedgram", "python", "numpy", "scipy"}
    assert all(path.exists() for path in outcome.files)


def test_the_same_data_gives_the_same_files(tmp_path):
    for side in "ab":
        run([toy("/dev/null")], tmp_path / side, "full")
    for name in ("figure.svg", "figure.pdf", "manifest.json", "claims.json"):
        first, second = ((tmp_path / side / "full" / "toy" / name).read_bytes() for side in "ab")
        assert first.replace(b"/a/", b"/b/") == second, name


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match="Cannot write to"):
        run([toy(tmp_path / "log")], tmp_path / "file", "full")


def test_names_and_suggestions():
    assert expand_name("ufm") == tuple(MODULES)
    assert expand_name("ufm-gap") == ("ufm-gap",)
    with pytest.raises(InputError, match="did you mean 'ufm-barycenter'"):
        expand_name("ufm-baricentre")
    with pytest.raises(InputError, match=r"^There is no experiment 'foo'\. Run 'fedgram reproduce list'"):
        expand_name("foo")
    assert expand_name("dnn-main") == ("dnn-main",)
    assert len(expand_name("dnn")) == 8
    assert expand_name("all") == (*expand_name("ufm"), *expand_name("dnn"), *expand_name("beyond"))


@pytest.fixture
def fedgram(capsys, monkeypatch):
    """Run a command here: its exit status, and what it printed to both streams."""
    monkeypatch.setenv("COLUMNS", "150")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedgram", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return call


@pytest.mark.slow
def test_the_command_lists_runs_and_reports(tmp_path, fedgram):
    _, listed, _ = fedgram("reproduce", "list", "--out", tmp_path)
    assert all(name in listed for name in MODULES)
    assert all(name in listed for name in GROUPS["all"])
    document = json.loads(fedgram("reproduce", "list", "--out", tmp_path, "--json")[1])
    assert [each["name"] for each in document["experiments"]] == list(GROUPS["all"])
    status, printed, said = fedgram("reproduce", "ufm-correction", "--quick", "--out", tmp_path, "--json")
    assert status == 0, said + printed
    document = json.loads(printed)
    assert set(document) == {"experiment", "scale", "claims", "files"}
    assert document["scale"] == "quick"
    assert all(Path(path).exists() for path in document["files"])
    page = tmp_path / "report.html"
    status, _, said = fedgram("report", "--out", tmp_path, "-o", page)
    assert status == 0, said
    html = page.read_text()
    assert 'src="' not in html  # nothing is loaded
    assert "<svg" in html
    assert "One-round recovery" in html
    assert "not run" in html


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce"], "Name an experiment"),
        (["reproduce", "ufm-gop"], "did you mean 'ufm-gap'"),
        (["reproduce", "ufm-gap", "--setting", "hopper"], "No such option: --setting"),
        (["reproduce", "ufm", "--data-dir", "."], "No such option: --data-dir"),
        (["reproduce", "dnn-main", "--quick"], "No such option: --quick"),
        (["report", "--out", "nowhere"], "There are no results in 'nowhere'"),
        (["reproduce", "ufm-finite", "--out", "/dev/null"], "Cannot write to"),
    ],
)
def test_bad_calls_exit_with_2(arguments, words, fedgram):
    status, _, said = fedgram(*arguments)
    assert status == 2
    assert words in said
