"""Tampered replies of one site do not count, are named with a reason, and change nothing else.

Every attack is a case of its own. Attacks of one kind share a federation: 'ridge' is honest in round 1 and
sends one tampered reply in every later round, in the order of the table.
"""

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from flwr.app import RecordDict

from fedgram._util.errors import InputError
from fedgram.flower import roster
from fedgram.flower.messages import Payload
from fedgram.flower.server_state import ServerState, Standing
from fedgram.runs.readmission import request_readmission
from tests.helpers.scripted_sites import (
    NAN,
    ScriptedGrid,
    ScriptedSite,
    forge_signature,
    set_array,
    set_value,
)


def chain(*changes):
    def change(payload):
        for each in changes:
            payload = each(payload)
        return payload

    return change


TRAIN = {
    "head NaN": (set_array("head", NAN), "'head' has a value that is not finite"),
    "head Inf": (set_array("head", lambda value: value * np.inf), "'head' has a value that is not finite"),
    "head 1e30": (set_array("head", lambda value: value + 1e30), "its head has a squared norm of"),
    "head 1e200": (set_array("head", lambda value: value + 1e200), "'head' has a value above 1e.100"),
    "head times -50": (set_array("head", lambda value: -50 * value), "its head has a squared norm of"),
    "head with the sign flipped": (set_array("head", lambda value: -value), "its head points away from"),
    "head flipped and small": (set_array("head", lambda value: -0.5 * value), "its head points away from"),
    "head times 3": (set_array("head", lambda value: 3 * value), "its head has a squared norm of"),
    "head of another shape": (set_array("head", np.zeros((2, 9))), r"'head' is not a float64 array of shape"),
    "head transposed": (set_array("head", np.transpose), "'head' is not a float64 array of shape"),
    "head scalar": (set_array("head", 1.0), "'head' is not a float64 array"),
    "head with an extra axis": (
        set_array("head", lambda value: value[None]),
        "'head' is not a float64 array",
    ),
    "head float32": (set_array("head", lambda value: value.astype(np.float32)), "'head' is not a float64"),
    "head int64": (set_array("head", lambda value: value.astype(np.int64)), "'head' is not a float64 array"),
    "head bool": (set_array("head", lambda value: value > 0), "'head' is not a float64 array"),
    "head missing": (set_array("head", None), "it lacks the array 'head'"),
    "head and objective zero": (
        chain(set_array("head", np.zeros_like), set_array("local_objective", 0.0)),
        "its objective 0 is below .*, the least that its moments allow",
    ),
    "bias NaN": (set_array("bias", NAN), "'bias' has a value that is not finite"),
    "bias scalar": (set_array("bias", 0.0), "'bias' is not a float64 array of shape"),
    "bias 1e6": (set_array("bias", lambda value: value + 1e6), "its bias is 1.41e.06 from its targets' mean"),
    "own bias NaN": (set_array("own_bias", NAN), "'own_bias' has a value that is not finite"),
    "own bias 1e6": (set_array("own_bias", lambda value: value + 1e6), "its own_bias is"),
    "centered bias 1e6": (set_array("centered_bias", lambda value: value + 1e6), "its centered_bias is"),
    "after missing": (set_value("after", None), "it lacks the value 'after'"),
    "after text": (set_value("after", "3"), "'after' is not of type int"),
    "after negative": (set_value("after", -1), "'after' is out of range"),
    "after the future": (set_value("after", 1000), "'after' is not a round before"),
    "another round": (set_value("round", 1), "it is for round 1"),
    "name of another site": (set_value("client", "coast"), "it is from site 'coast'"),
    "diverged NaN": (set_array("diverged", np.nan), "'diverged' has a value that is not finite"),
    "diverged vector": (set_array("diverged", np.ones(2)), "'diverged' is not a float64 array"),
    "diverged half": (set_array("diverged", 0.5), "'diverged' is neither 0 nor 1"),
    "loss vector": (set_array("loss", np.ones(2)), "'loss' is not a float64 array"),
    "loss Inf": (set_array("loss", np.inf), "'loss' has a value that is not finite"),
    "objective NaN": (set_array("local_objective", np.nan), "'local_objective' has a value that is not"),
    "objective too good": (set_array("local_objective", 1e-9), "its objective 1e-09 is below"),
    "clipped a fraction": (set_array("clipped", 0.5), "'clipped' is not a number of targets"),
    "clipped too many": (set_array("clipped", 3.0), "'clipped' is not a number of targets"),
    "own mean changed": (set_array("own_mean", np.ones(2)), "unexpected array 'own_mean'"),
    "an extra array of 40 MB": (set_array("own_mean", np.zeros(5_000_000)), "unexpected array 'own_mean'"),
    "an extra value": (set_value("admin", True), "it has an unexpected value 'admin'"),
    "an extra value with escape codes": (set_value("\x1b[2J", 1), r"unexpected value '\\x1b\[2J'"),
    "other rows": (set_value("fingerprint", "other"), "it changed its rows after the start"),
    "twice the rows": (set_value("rows", 160), "it changed its rows after the start"),
    "rows as text": (set_value("rows", "80"), "'rows' is not of type int"),
    "rows true": (set_value("rows", True), "'rows' is not of type int"),
    "nonce of an earlier request": (set_value("nonce", 32 * "0"), "it answers another request"),
    "key of another site": (set_value("key", 64 * "1"), "its signature is wrong"),
    "key not hexadecimal": (set_value("key", "my key"), "its signature is wrong"),
    "no arrays": (lambda payload: replace(payload, arrays={}), "it lacks the array 'head'"),
    "nothing": (lambda payload: Payload(), "it lacks the value"),
}
UNSIGNED = {
    "forged signature": (forge_signature, "its signature is wrong"),
    "no signature": (set_value("signature", None), "it lacks the value 'signature'"),
    "empty record set": (lambda payload: RecordDict(), "it has no record .arrays. of fedgram"),
}
UNSIGNED_TRAIN = UNSIGNED | {
    "changed after signing": (set_array("bias", lambda value: value + 1e-9), "its signature is wrong"),
    "head complex": (set_array("head", lambda value: value + 0j), "'head' is not a float64 array"),
    "head text": (set_array("head", lambda value: value.astype(str)), "'head' is not a float64 array"),
}
HAS_TEST_ROWS = {  # ridge says that it has 8 test rows
    "query": set_value("test_rows", 8),
    "evaluate": set_array("test_mse", np.ones(3)),
}
EVALUATE_TEST_ROWS = {
    "test MSE NaN": (set_array("test_mse", NAN), "'test_mse' is not a mean of squares"),
    "test MSE of another shape": (set_array("test_mse", np.ones(4)), "'test_mse' is not a float64 array"),
    "test MSE -5": (set_array("test_mse", np.full(3, -5.0)), "'test_mse' is not a mean of squares"),
}
EVALUATE = {
    "test MSE without test rows": (set_array("test_mse", np.ones(3)), "'test_mse' has values, but"),
    "train MSE NaN": (set_array("train_mse", NAN), "'train_mse' has a value that is not finite"),
    "train MSE negative": (set_array("train_mse", np.full(3, -5.0)), "'train_mse' is not a mean of squares"),
    "train MSE of another shape": (set_array("train_mse", np.ones(4)), "'train_mse' is not a float64 array"),
    "train MSE missing": (set_array("train_mse", None), "it lacks the array 'train_mse'"),
    "objective Inf": (set_array("objective", np.inf), "'objective' has a value that is not finite"),
    "objective too good": (set_array("objective", 1e-9), "its objective 1e-09 is below"),
}
FAILURES = {
    "refusal with escape codes": ("\x1b[31mowned\x1b[0m\nRound 9 of 9", r"\x1b[31mowned\x1b[0m\nRound 9"),
    "refusal of 100,000 characters": ("x" * 100_000, "x" * 300 + "..."),
    "refusal an integer": (17, "17"),
}
INTRODUCTIONS = {
    "mean NaN": (set_array("own_mean", NAN), "'own_mean' has a value that is not finite"),
    "mean 1e200": (set_array("own_mean", np.full(2, 1e200)), "'own_mean' has a value above 1e.100"),
    "covariance not PSD": (set_array("own_covariance", np.diag([1.0, -1.0])), "has a negative eigenvalue"),
    "covariance asymmetric": (set_array("own_covariance", np.array([[1.0, 0.5], [0, 1]])), "not symmetric"),
    "covariance of another shape": (set_array("own_covariance", np.eye(3)), "'own_covariance' is not"),
    "covariance 1e200": (set_array("own_covariance", 1e200 * np.eye(2)), "has a value above 1e.100"),
    "count negative": (set_value("rows", -3), "'rows' is out of range"),
    "count zero": (set_value("rows", 0), "has 0 rows, but it needs at least 3"),
    "count 80.5": (set_value("rows", 80.5), "'rows' is not of type int"),
    "count text": (set_value("rows", "80"), "'rows' is not of type int"),
    "count a list": (set_value("rows", [80]), "'rows' is not of type int"),
    "count beyond integers of floats": (set_value("rows", 2**60), "'rows' is out of range"),
    "count an array": (chain(set_value("rows", None), set_array("rows", np.ones(1))), "it lacks the value"),
    "head NaN": (set_array("head", np.full((2, 4), np.nan)), "it has an unexpected array 'head'"),
    "head zero": (set_array("head", np.zeros((2, 4))), "it has an unexpected array 'head'"),
    "head of another shape": (set_array("head", np.zeros(3)), "it has an unexpected array 'head'"),
    "network missing": (set_value("network", None), "it lacks the value 'network'"),
    "another version": (set_value("version", "9.9"), "it runs fedgram 9.9, but the server runs"),
    "name of another site": (set_value("client", "coast"), "name of site 'coast' but another key than at"),
    "name empty": (set_value("client", ""), "'client' is not printable text of 1 to 200"),
    "name blank": (set_value("client", "  "), "'client' is not printable text"),
    "name with newline": (set_value("client", "a\nb"), "'client' is not printable text"),
    "name with escape codes": (set_value("client", "\x1b[2J"), "'client' is not printable text"),
    "name an integer": (set_value("client", 7), "'client' is not of type str"),
    "name with NUL": (set_value("client", "a\0b"), "'client' is not printable text"),
    "name of 100,000 characters": (set_value("client", "x" * 100_000), "'client' is not printable text"),
    "targets text": (set_value("targets", "y1,y2"), "'targets' is not of type list"),
    "targets numbers": (set_value("targets", [1, 2]), "'targets' is not printable text"),
    "targets empty": (
        chain(
            set_value("targets", []), set_array("own_mean", np.zeros(0)),
            set_array("own_covariance", np.zeros((0, 0))),
        ),
        "features=4 is too small for its 0 targets",
    ),
    "parameters text": (set_value("parameters", "7"), "'parameters' is not of type int"),
    "test rows negative": (set_value("test_rows", -1), "'test_rows' is out of range"),
}  # fmt: skip


def read_audit(run) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "audit.jsonl").read_text().splitlines()]


GROUPS = {
    "train": ("train", "changes", TRAIN, {}),
    "train unsigned": ("train", "unsigned", UNSIGNED_TRAIN, {}),
    "evaluate": ("evaluate", "changes", EVALUATE, {}),
    "evaluate unsigned": ("evaluate", "unsigned", UNSIGNED, {}),
    "evaluate with test rows": ("evaluate", "changes", EVALUATE_TEST_ROWS, HAS_TEST_ROWS),
}
"""Kind of message, where it is changed, the attacks, and what ridge always changes."""


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Return a function that runs the federation of a group once, and returns its run."""

    @cache
    def run(group: str):
        kind, where, attacks, always = GROUPS[group]
        rounds = {"rounds": 1 + len(attacks), "max-rejections": 1000}
        grid = ScriptedGrid(tmp_path_factory.mktemp("attacked"), **rounds)
        changes = [change for change, _ in attacks.values()]

        def attack(payload):
            payload = always.get(kind, lambda each: each)(payload)
            number = sum(each == ("ridge", kind) for each in grid.asked)
            return changes[number - 2](payload) if number > 1 else payload

        grid.ridge.changes |= always
        getattr(grid.ridge, where)[kind] = attack
        return grid.serve()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)  # 100 rounds of three files each
        yield run


@pytest.fixture(scope="module")
def recorded(attacked):
    """Return a function that reads the refusals and the rounds of a group once."""

    @cache
    def read(group: str):
        run = attacked(group)
        return [each for each in read_audit(run) if each.get("outcome") == "refused"], run.rounds()

    return read


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.mark.parametrize(
    ("group", "attack"),
    [(group, attack) for group, (_, _, attacks, _) in GROUPS.items() for attack in attacks],
)
def test_tampered_reply_counts_as_absent(recorded, group, attack):
    kind, _, attacks, _ = GROUPS[group]
    (refusals, rounds), number = recorded(group), 2 + list(attacks).index(attack)
    (refused,) = (each for each in refusals if each.get("round") == number)
    assert refused["client"] == "ridge"
    assert re.search(attacks[attack][1], refused["reason"])
    first, each = rounds[0], rounds[number - 1]
    assert np.isfinite(each.shared_objective).tolist() == [True, False, True]
    assert np.isfinite(each.local_objective).tolist() == [True, kind == "evaluate", True]
    if kind == "train":
        np.testing.assert_array_equal(each.returned_heads[1], first.returned_heads[1])
    np.testing.assert_allclose(each.head, each.returned_heads.mean(axis=0), atol=1e-14)  # equal weights


@pytest.mark.parametrize("group", GROUPS)
def test_run_with_a_bad_site_is_completed_without_escape_codes(attacked, group):
    run = attacked(group)
    assert run.complete
    assert "\x1b" not in (run.folder / "audit.jsonl").read_text()


@pytest.fixture(scope="module")
def introduced(tmp_path_factory):
    """Let ridge introduce itself wrongly before every round; coast and valley train without it."""
    attacks = list(INTRODUCTIONS.values())
    grid = ScriptedGrid(tmp_path_factory.mktemp("introduced"), clients=2, rounds=len(attacks) - 1)
    number = iter(range(len(attacks)))
    grid.ridge.changes["query"] = lambda payload: attacks[next(number)][0](payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr(roster, "RETRY_INTERVAL", 0.0)
        return grid.serve()


@pytest.mark.parametrize("attack", INTRODUCTIONS)
def test_tampered_introduction_is_refused(introduced, attack):
    assert introduced.complete
    assert introduced.setup.data.clients == ("coast", "valley")
    reasons = [each["reason"] for each in read_audit(introduced) if each.get("outcome") == "refused"]
    reason = dict(zip(INTRODUCTIONS, reasons, strict=True))[attack]
    assert re.search(INTRODUCTIONS[attack][1], reason)


def test_targets_in_another_order_are_refused(tmp_path):
    grid = ScriptedGrid(tmp_path)
    grid.ridge.changes["query"] = set_value("targets", ["y2", "y1"])
    with pytest.raises(InputError, match="'coast' and 'ridge' differ in targets: y1, y2 and y2, y1"):
        grid.serve()


def test_name_of_a_path_stays_a_name(tmp_path):
    grid = ScriptedGrid(tmp_path / "a" / "b", rounds=1)
    for kind in ("query", "train", "evaluate"):
        grid.ridge.changes[kind] = set_value("client", "../../x")
    run = grid.serve()
    assert run.setup.data.clients == ("../../x", "coast", "valley")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_refused_introduction_ends_the_wait_with_its_reason(tmp_path):
    grid = ScriptedGrid(tmp_path)
    grid.ridge.changes["query"] = set_value("client", "")
    with pytest.raises(InputError, match="Refused node 12: 'client' is not printable text"):
        grid.serve()


def test_failure_that_a_site_reports_is_escaped(tmp_path, caplog):
    attacks = [lambda payload, text=text: Payload.from_error(text) for text, _ in FAILURES.values()]
    grid = ScriptedGrid(tmp_path, rounds=1 + len(attacks))
    grid.ridge.unsigned["train"] = lambda payload: (
        attacks[payload.metadata["round"] - 2](payload) if payload.metadata["round"] > 1 else payload
    )
    run = grid.serve()
    messages = [each.getMessage() for each in caplog.records]
    for name, (_, shown) in FAILURES.items():
        assert any(f"Client 'ridge' rejected the 'train' message: {shown}" in each for each in messages), name
    assert "\x1b" not in caplog.text
    failed = [each for each in read_audit(run) if each.get("outcome") == "failed"]
    assert len(failed) == len(attacks)
    assert not run.account.stopped


def test_site_is_suspended_after_max_rejections_until_an_operator_readmits_it(tmp_path, caplog):
    grid = ScriptedGrid(tmp_path, rounds=6, **{"max-rejections": 2})

    def attack(payload):
        return set_array("head", NAN)(payload) if payload.metadata["round"] in (2, 3) else payload

    def readmit_before_round_5(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 4):
            (audit,) = tmp_path.rglob("audit.jsonl")
            request_readmission(audit.parent, "ridge")
        return False

    grid.ridge.changes["train"], grid.silent = attack, readmit_before_round_5
    run = grid.serve()
    heads = np.array([each.returned_heads[1] for each in run.rounds()])
    assert np.isnan(heads).any(axis=(1, 2)).tolist() == [False, False, True, True, False, False]
    assert grid.asked.count(("ridge", "train")) == 5
    weights = np.array([0.5, 0.5])
    third = run.rounds()[2]
    np.testing.assert_allclose(third.head, np.tensordot(weights, third.returned_heads[[0, 2]], 1))
    events = [(each["event"], each.get("client")) for each in read_audit(run)]
    assert events.index(("suspend", "ridge")) < events.index(("readmit", "ridge"))
    text = caplog.text
    assert "Suspended client 'ridge': 2 replies were refused, the last because 'head' has a value" in text
    assert "Client 'ridge' is suspended; averaging without it." in text
    assert "to G_⋆ of 2 clients" in text
    assert "Readmitted client 'ridge'." in text


def test_a_readmission_is_not_lost_if_the_server_stops_or_another_comes(tmp_path):
    grid = ScriptedGrid(tmp_path, rounds=3, **{"max-rejections": 1})

    def attack(payload):
        return set_array("head", NAN)(payload) if payload.metadata["round"] == 1 else payload

    def readmit_twice(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            (audit,) = tmp_path.rglob("audit.jsonl")
            request_readmission(audit.parent, "ridge")
            (audit.parent / "readmit.json").rename(audit.parent / "readmit.taken")  # the server stopped here
            request_readmission(audit.parent, "coast")
        return False

    grid.ridge.changes["train"] = grid.sites[11].changes["train"] = attack  # the latter is coast
    grid.silent = readmit_twice
    run = grid.serve()
    heads = np.array([each.returned_heads for each in run.rounds()])
    assert np.isfinite(heads[1:]).all()
    assert not list(run.folder.glob("readmit.*"))


def test_a_site_that_is_suspended_by_its_evaluation_is_in_the_average(tmp_path):
    grid = ScriptedGrid(tmp_path, rounds=2, **{"max-rejections": 1})
    grid.ridge.changes["evaluate"] = set_array("train_mse", np.full(3, -1.0))
    run = grid.serve()
    first, second = run.rounds()
    assert np.isfinite(first.returned_heads).all()
    assert np.isnan(second.returned_heads).any(axis=(1, 2)).tolist() == [False, True, False]
    counted = [each["counted"] for each in read_audit(run) if each["event"] == "round"]
    assert [len(each) for each in counted] == [3, 2]


def test_a_site_that_is_awaited_with_a_new_key_has_no_error():
    state = ServerState("id", standings={"coast": Standing("key", "rows", 4)})
    state.update_errors("shared", {"coast": 2.0, "ridge": 9.0})
    assert state.mean_error("shared") == 0.5


def test_suspension_survives_a_restart(tmp_path):
    grid = ScriptedGrid(tmp_path, rounds=3, **{"max-rejections": 1})
    grid.ridge.changes["train"] = set_array("head", NAN)
    grid.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client replied in round 2"):
        grid.serve()
    grid.silent = lambda site, kind, n: False
    run = grid.serve()
    assert run.complete
    assert grid.asked.count(("ridge", "train")) == 1


def test_claim_to_have_diverged_suspends_the_site_only(tmp_path):
    grid = ScriptedGrid(tmp_path)
    grid.ridge.changes["train"] = chain(set_array("diverged", 1.0), set_array("loss", np.nan))
    run = grid.serve()
    assert run.complete
    assert np.isnan([each.local_objective for each in run.rounds()]).all(axis=0).tolist() == [
        False,
        True,
        False,
    ]


def test_second_node_cannot_take_a_seat(tmp_path, caplog):
    """Another node with the name, moments and fingerprint of a site has another key."""
    grid = ScriptedGrid(tmp_path, rounds=3)

    def connect_impostor(site, kind, n):
        if (site, kind, n) == ("valley", "evaluate", 1):
            grid.sites[99] = ScriptedSite("ridge", grid.ridge.rows)
            grid.configs = {**grid.configs, 99: {"site": "impostor"}}
        return False

    grid.silent = connect_impostor
    run = grid.serve()
    assert ("impostor", "train") not in grid.asked
    assert "Refused node 99: it has the name of site 'ridge' but another key than at the first" in caplog.text
    assert np.isfinite([each.local_objective for each in run.rounds()]).all()


def test_lost_key_needs_an_operator(tmp_path):
    grid = ScriptedGrid(tmp_path, rounds=2)
    grid.silent = lambda site, kind, n: kind == "train" and n == 2
    with pytest.raises(InputError, match="No client replied in round 2"):
        grid.serve()
    grid.sites[12] = ScriptedSite("ridge", grid.ridge.rows)
    grid.silent = lambda site, kind, n: False
    (audit,) = tmp_path.rglob("audit.jsonl")
    request_readmission(audit.parent, "ridge", new_key=True)
    run = grid.serve()
    assert np.isfinite([each.local_objective for each in run.rounds()]).all()


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"own_mean": lambda value: value + 1000.0}, "its network misses its mean by"),
        ({"own_mean": lambda value: value + 1e6}, "its network misses its mean by"),
        ({"own_mean": lambda value: value + 1e30}, "its network misses its mean by|its bias is"),
        ({"own_covariance": lambda value: value / 100}, "its head has a squared norm|misses its covariance"),
        ({"own_covariance": lambda value: 100 * value}, "the least that its moments allow"),
    ],
    ids=["mean + 1000", "mean 1e6", "mean 1e30", "covariance / 100", "covariance * 100"],
)
def test_false_moments_do_not_fit_what_the_site_trains_to(tmp_path, lie, reason, caplog):
    grid = ScriptedGrid(tmp_path, rounds=2)
    for name, change in lie.items():
        grid.ridge.changes["query"] = set_array(name, change)
    try:
        grid.serve()
    finally:
        assert re.search(reason, caplog.text)


def test_site_with_most_rows_is_named(tmp_path, caplog):
    grid = ScriptedGrid(tmp_path, rounds=1)
    for kind in ("query", "train", "evaluate"):
        grid.ridge.changes[kind] = set_value("rows", 10**12)
    grid.serve()
    assert "Client 'ridge' has 100 % of all rows, so no aggregation can outvote it." in caplog.text
