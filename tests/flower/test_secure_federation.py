"""A secure federation predicts and trains like a plain one, and survives sites that drop out."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from fedgram import InputError, Penalty, explain, predict
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from fedgram.display.secure_run_tables import describe_state
from fedgram.federation.secure_sums import Participant, decode, encode
from fedgram.flower import Site, client_app, secure_session
from fedgram.flower.app import check_secure_node
from fedgram.flower.client import Client
from fedgram.flower.config import FederationConfig
from fedgram.flower.identity import SiteKey
from fedgram.flower.messages import KINDS, GridTransport, Payload, RejectedReplyError
from fedgram.flower.secure_chooser import error_numbers, errors_with_totals
from fedgram.flower.secure_client import TASKS
from fedgram.flower.secure_messages import (
    KEYS,
    REVEAL,
    SECURE_KINDS,
    SHARES,
    SUM,
    TRIED,
    from_words,
    to_words,
)
from fedgram.flower.secure_server import SecureServer, run_secure_server
from fedgram.flower.secure_session import SecureSums
from fedgram.flower.server import run_server
from fedgram.runs.audit import AUDIT, AuditLog, read_audit
from fedgram.runs.check import check_folder
from fedgram.runs.secure_record import DOCUMENT, FORMAT, SecureRecord
from fedgram.theory.geometry import psd
from tests.helpers.command import fedgram
from tests.helpers.flower_grid import MemoryGrid

SITES = ("coast", "ridge", "tide", "valley")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh())


def problem() -> Problem:
    rng = np.random.default_rng(0)
    train, test = {}, {}
    for m, name in enumerate(SITES):
        inputs = rng.standard_normal((28 + 6 * m, 3)).astype(np.float32)
        mixing = np.array([[1.0, 0.4 * m], [0.0, 1.0 + 0.2 * m]])
        targets = np.tanh(inputs[:, :2]) @ mixing + 0.3 * m
        train[name], test[name] = Split(inputs[8:], targets[8:]), Split(inputs[:8], targets[:8])
    return Problem("four sites", "GENERATED", train, test)


class RecordingGrid(MemoryGrid):
    """A grid that keeps the replies of all sites by kind."""

    replies: dict[str, list[Payload]]

    def _reply(self, message):
        reply = super()._reply(message)
        if reply is not None:
            kept = self.__dict__.setdefault("replies", {}).setdefault(message.metadata.message_type, [])
            kept.append(Payload.from_records(reply.content))
        return reply


def build_grid(folder, silent=None, secure=True, validation=0, **config):
    """Four sites; `validation` is the number of their training rows that are for validation."""
    rows = problem()

    def site(context: Context) -> Site:
        name = str(context.node_config["site"])
        train, test = rows.train[name], rows.test[name]
        held_out = Split(train.inputs[:validation], train.targets[:validation]) if validation else None
        rest = Split(train.inputs[validation:], train.targets[validation:])
        return Site(
            name, rest, test, validation=held_out, backbone=network, folder=folder / "private", device="cpu"
        )

    settings = {
        "name": "four sites", "kind": "GENERATED", "clients": 4, "procedure": "proximal+corrected",
        "rounds": 1, "epochs": 1, "batch": 16, "features": 6, "precision": "fp64", "backbone": "small",
        "reply-timeout": 1e-3, "out": str(folder / "server"), "secure": secure,
    }  # fmt: skip
    nodes = {number: {"site": name} for number, name in enumerate(SITES, start=11)}
    return RecordingGrid(client_app(site), settings | config, nodes, silent)


def serve(grid, server=run_secure_server):
    settings = FederationConfig.from_run_config(grid.config)
    return server(GridTransport(grid, 0.0), settings)


def serve_prediction(grid, folder):
    """Predict without training; return the document."""
    settings = FederationConfig.from_run_config(grid.config)
    sums = SecureSums(GridTransport(grid, 0.0), settings, AuditLog.open(folder / AUDIT), "f")
    sums.wait_for_clients()
    return SecureServer(sums, settings, folder).record.document


def read_document(folder):
    return json.loads((folder / DOCUMENT).read_text())


@pytest.fixture
def short_sessions(monkeypatch):
    """Start a new session after every four sums."""
    monkeypatch.setattr(secure_session, "SUMS_PER_SESSION", 4)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A grid after a secure run of two sessions, and the run's folder."""
    grid = build_grid(tmp_path_factory.mktemp("secure"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_session, "SUMS_PER_SESSION", 8)
        return grid, serve(grid).folder


def test_prediction_and_explanation_equal_the_plain_ones(secure):
    plain = predict(problem().moments, Penalty())
    gap, found = explain(plain), read_document(secure[1])
    assert psd.relative_error(np.array(found["barycenter"]["gram"]), plain.barycenter.gram) < 1e-9
    assert psd.relative_error(np.array(found["centralized"]), plain.centralized) < 1e-9
    assert found["gap"]["relative"] == pytest.approx(float(gap.relative), abs=1e-9)
    for name, trace in zip(("mean", "covariance", "averaging"), gap.traces, strict=True):
        assert found["gap"][name] == pytest.approx(float(trace), abs=1e-9)
    np.testing.assert_allclose(found["pooled_covariance"], problem().moments.pooled.covariance, rtol=1e-12)


def test_a_secure_round_ends_at_the_plain_head(secure, tmp_path):
    plain = serve(build_grid(tmp_path, secure=False), run_server)
    found = SecureRecord.load(secure[1]).averages
    np.testing.assert_allclose(found["head"], plain.rounds()[-1].head, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["bias"], plain.rounds()[-1].bias, rtol=1e-9, atol=1e-12)
    measured, weights = read_document(secure[1])["rounds"][-1], problem().moments.client_weights
    np.testing.assert_allclose(measured["train_mse"], weights @ plain.rounds()[-1].train_mse, rtol=1e-9)
    np.testing.assert_allclose(measured["test_mse"], plain.rounds()[-1].test_mse.mean(axis=0), rtol=1e-9)


@pytest.mark.slow
def test_the_moment_head_from_secure_sums_is_that_of_the_plain_run(tmp_path):
    config = {"procedure": "full-model+moment-head", "validation": 6, "validation-fraction": 0.2}
    plain = serve(build_grid(tmp_path / "plain", secure=False, **config), run_server)
    record = serve(build_grid(tmp_path / "secure", **config))
    found, chosen = record.document["chosen"], plain.account.chosen
    assert found["ridge"] == chosen["ridge"]
    assert found["test_mse"] == pytest.approx(np.mean(chosen["test_mse"]), rel=1e-9)
    assert "No limit of averaged heads applies" in record.sentences[1]
    assert record.sentences[2].endswith(f"on all test rows: {found['test_mse']:.3g}.")
    head = record.averages["head"]
    np.testing.assert_allclose(head, plain.rounds()[-1].head, rtol=1e-9, atol=1e-12)


VALIDATION = {"validation": 6, "validation-fraction": 0.2}
AUTO = "full-model+moment-head+site-effects+blended"


@pytest.mark.slow
@pytest.mark.parametrize("procedure", [AUTO, "local", "proximal+blended"])
def test_choices_from_secure_sums_are_those_of_the_plain_run(tmp_path, procedure):
    config = {"procedure": procedure, **VALIDATION}
    plain = serve(build_grid(tmp_path / "plain", secure=False, **config), run_server).account.chosen
    record = serve(build_grid(tmp_path / "secure", **config))
    found = record.document["chosen"]
    for name in ("ridge", "intercept", "deviation"):
        assert found.get(name) == plain.get(name)
    # Each site has eight test rows. Shares are the sites' own, so equal errors need equal shares.
    assert found["test_mse"] == pytest.approx(np.mean(plain["test_mse"]), rel=1e-9)
    if "alone_mse" in plain:
        assert found["alone_mse"] == pytest.approx(np.mean(plain["alone_mse"]), rel=1e-9)
        assert record.sentences[-1].endswith(f"trained alone: {found['alone_mse']:.3g}.")
        stored = [json.loads(path.read_text()) for path in tmp_path.glob("secure/private/*/**/joining.json")]
        assert len(stored) == len(plain["alone_mse"])
        for each in stored:
            for kind, name in {"alone": "alone_mse", "joined": "test_mse"}.items():
                squares = [errors[kind] ** 2 for errors in each["rmse"].values()]
                assert np.mean(squares) == pytest.approx(each[name], rel=1e-9)
    assert record.complete
    assert SecureRecord.load(record.folder).complete


@pytest.mark.slow
def test_moment_heads_between_rounds_are_those_of_the_plain_run(tmp_path):
    config = {"procedure": "full-model+moment-head=2+site-effects", "rounds": 3, **VALIDATION}
    plain = serve(build_grid(tmp_path / "plain", secure=False, **config), run_server)
    record = serve(build_grid(tmp_path / "secure", **config))
    np.testing.assert_allclose(record.averages["head"], plain.rounds()[-1].head, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
@hypothesis_settings(max_examples=20)
def test_errors_from_totals_give_the_same_choice(seed, clients):
    errors = np.random.default_rng(seed).exponential(1.0, (12, clients))
    total = [sum(each) for each in zip(*(error_numbers(e, has_scatter=True) for e in errors.T), strict=True)]
    found = errors_with_totals(total, 12, clients)
    np.testing.assert_allclose(found.sum(axis=1), errors.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found @ found.T, errors @ errors.T, rtol=1e-9, atol=1e-9)
    excess, ours = (each - each[each.sum(axis=1).argmin()] for each in (errors, found))
    np.testing.assert_allclose(ours.var(axis=1, ddof=1), excess.var(axis=1, ddof=1), rtol=1e-6, atol=1e-9)


def test_choices_do_not_depend_on_the_size_of_targets():
    errors = np.random.default_rng(0).exponential(1.0, (3, 12))

    def sum_errors(size):
        request = Payload({"covariance": size**2 * np.eye(2)}, {"has_scatter": 1})
        replies = (Payload({"errors": 1e3 * size**2 * each}) for each in errors)
        clients = (SimpleNamespace(try_strengths=lambda _, reply=reply: reply) for reply in replies)
        return decode(sum(encode(TASKS[TRIED](client, request)) for client in clients))

    expected = errors_with_totals(sum_errors(1.0), 12, 3)
    for size in (1e-6, 1e6):  # the products of errors are of order size⁴
        np.testing.assert_allclose(errors_with_totals(sum_errors(size), 12, 3), expected, rtol=1e-9)


@pytest.mark.parametrize("document", [{}, {"settings": {}}, {"rounds": 3}, {"settings": None}])
def test_a_damaged_record_is_named_and_hides_no_other_run(secure, tmp_path, caplog, document):
    whole = read_document(secure[1]) if document else {"format": FORMAT}
    for folder, content in ("good", read_document(secure[1])), ("bad", whole | document):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / DOCUMENT).write_text(json.dumps(content))
    (problem,) = check_folder(tmp_path).problems
    assert problem.startswith(f"This version cannot read '{tmp_path / 'bad' / 'secure.json'}'")
    with pytest.raises(InputError, match=r"This version cannot read '.*bad/secure.json'"):
        SecureRecord.load(tmp_path / "bad")
    for command in ("list", "show"):
        caplog.clear()
        assert "four sites (GENERATED)" in fedgram("runs", command, tmp_path).stdout
        assert caplog.text.count("This version cannot read") == 1


def test_runs_list_and_show_say_that_a_run_is_secure(secure):
    code, out, _ = fedgram("runs", "list", secure[1])
    assert code == 0
    assert "With secure sums" in out
    assert "four sites (GENERATED)" in out
    code, out, _ = fedgram("runs", "show", secure[1])
    assert code == 0
    assert "on four sites (GENERATED), small, with secure sums: complete" in out
    assert "error to G_cen" in out
    (listed,) = json.loads(fedgram("runs", "list", secure[1], "--json").stdout)["secure_runs"]
    (shown,) = json.loads(fedgram("runs", "show", secure[1], "--json").stdout)["secure_runs"]
    assert listed["complete"]
    assert listed["complete"]
    assert shown["rounds"] == read_document(secure[1])["rounds"]
    assert "nobody has each client's head" in fedgram("runs", "compare", secure[1]).stderr


def test_a_secure_run_is_not_complete_before_its_moment_head_is_solved(secure):
    document = read_document(secure[1])
    settings = document["settings"] | {"procedure": "full-model+moment-head"}
    unsolved = SecureRecord(secure[1], document | {"settings": settings})
    assert not unsolved.complete
    assert describe_state(unsolved) == "1 round, models not chosen yet"


def test_no_message_has_moments_heads_or_errors_in_the_clear(secure):
    grid, _ = secure
    assert set(grid.replies) == set(SECURE_KINDS)
    assert all(not reply.arrays for reply in grid.replies["query.secure"])
    numbers = np.concatenate([reply.arrays["masked"].ravel() for reply in grid.replies[SUM]])
    assert ((numbers >= 0) & (numbers < 2**32) & (numbers == np.floor(numbers))).all()
    # Uniform 32-bit words: the mean of n has a standard deviation of 2³² / √(12 n).
    assert abs(numbers.mean() / 2**32 - 0.5) < 5 / np.sqrt(12 * numbers.size)
    assert len({each for reply in grid.replies[SUM] for each in from_words(reply.arrays["masked"])}) == (
        len(numbers) // 4
    )


def test_the_audit_log_names_who_was_in_each_sum(secure):
    audit = read_audit(secure[1] / AUDIT)
    assert audit.last
    lines = [json.loads(line) for line in (secure[1] / AUDIT).read_text().splitlines()]
    sums = [line for line in lines if line["event"] == "sum"]
    assert all(line["clients"] == list(SITES) and not line["dropped"] for line in sums)


def test_an_audit_of_a_secure_run_counts_sums_instead_of_replies(secure, tmp_path):
    sums = read_audit(secure[1] / AUDIT).sums
    out = fedgram("runs", "audit", secure[1]).stdout
    assert "chained; valid signatures: 4 of introductions; last " in out
    assert f"\n  {sums} secure sums: the log names the clients of each, and has no signatures of" in out
    assert "replies:" not in out
    assert "dropped" not in out
    grid = build_grid(tmp_path, silent=drop(SUM, 7))
    folder = serve(grid).folder
    (audit,) = json.loads(fedgram("runs", "audit", folder, "--json").stdout)["audits"]
    assert (audit["sums"], audit["dropouts"]) == (read_audit(folder / AUDIT).sums, {"ridge": 1})
    assert "\n  ridge dropped out of 1 sum\n" in fedgram("runs", "audit", folder).stdout


def test_a_secure_run_has_no_site_to_readmit(secure):
    code, _, err = fedgram("runs", "readmit", secure[1], "ridge")
    assert code == 2
    assert f"The run in '{secure[1]}' has secure sums, which suspend no site" in err


def drop(kind, number):
    """Silence the site 'ridge' from its n-th message of a kind on; then it sends no further keys."""
    return lambda site, asked, n: (
        site == "ridge" and ((asked == kind and n >= number) or (asked == KEYS and n > 1 and kind != REVEAL))
    )


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "number"),
    [pytest.param(SHARES, 1, marks=SLOW), (SUM, 2), pytest.param(REVEAL, 3, marks=SLOW)],
)
@pytest.mark.usefixtures("short_sessions")
def test_a_site_that_drops_out_leaves_the_prediction_of_the_others(tmp_path, kind, number):
    found, rows = serve_prediction(build_grid(tmp_path, drop(kind, number)), tmp_path), problem()
    # A site that sent its numbers but reveals no shares is in every sum.
    left = SITES if kind == REVEAL else tuple(name for name in SITES if name != "ridge")
    kept = Problem("rest", "GENERATED", {name: rows.train[name] for name in left}, {})
    assert found["clients"] == list(left)
    assert found["rows"] == kept.moments.count.sum()
    star = predict(kept.moments, Penalty()).barycenter.gram
    assert psd.relative_error(np.array(found["barycenter"]["gram"]), star) < 1e-9


@pytest.mark.slow
@pytest.mark.usefixtures("short_sessions")
def test_moments_without_a_site_that_was_in_the_barycenter_are_never_opened(secure, tmp_path):
    """Two totals of moments that differ by one site would reveal its moments."""
    last = read_document(secure[1])["barycenter"]["rounds"] + 1
    found = serve_prediction(build_grid(tmp_path, drop(SUM, last)), tmp_path)
    assert found["clients"] == [name for name in SITES if name != "ridge"]
    lines = [json.loads(line) for line in (tmp_path / AUDIT).read_text().splitlines()]
    assert [line["clients"] for line in lines if line.get("task") == "moments"] == [found["clients"]]


@pytest.mark.slow
@pytest.mark.usefixtures("short_sessions")
def test_a_site_that_is_away_for_one_sum_comes_back(tmp_path):
    silent = lambda site, kind, n: site == "ridge" and kind == SUM and n == 2  # noqa: E731
    found = serve_prediction(build_grid(tmp_path, silent), tmp_path)
    assert found["clients"] == list(SITES)


@pytest.mark.usefixtures("short_sessions")
def test_too_few_sites_are_refused(tmp_path):
    silent = lambda site, kind, n: site in ("ridge", "tide", "valley") and kind == SUM  # noqa: E731
    with pytest.raises(InputError, match="Only 1 client replied in a secure sum"):
        serve(build_grid(tmp_path, silent))


@pytest.fixture
def site_client(secure):
    """The client of 'coast' after the secure run, and its last requests' session."""
    grid, _ = secure
    rows = problem()
    folder = Path(grid.config["out"]).with_name("private")
    site = Site(
        "coast", rows.train["coast"], rows.test["coast"], backbone=network, folder=folder, device="cpu"
    )
    return Client(site, FederationConfig.from_run_config(grid.config)), folder


def test_a_site_refuses_another_request_for_a_sum_that_it_answered(site_client):
    client, folder = site_client
    (path,) = folder.glob("coast/secure/*/*.json")
    metadata = {
        "session": path.stem, "federation": path.parent.name, "number": 1, "round": 0, "task": "round",
        "clients": list(SITES), "nonce": "0",
    }  # fmt: skip
    with pytest.raises(InputError, match="asked twice"):
        client.reply(SUM, Payload({"head": 2 * np.eye(2)}, metadata))
    with pytest.raises(InputError, match=r"Too few or unknown clients in a secure sum: 'coast'\. Start"):
        client.reply(SUM, Payload({"head": np.eye(2)}, metadata | {"number": 8, "clients": ["coast"]}))
    revealed = metadata | {"sent": list(SITES), "dropped": []}
    with pytest.raises(InputError, match=r"Too few clients .* secure sum 2, .*: 'coast'\. Start a new run"):
        client.reply(REVEAL, Payload(metadata=metadata | {"number": 2, "sent": ["coast"], "dropped": []}))
    for number in (-1, 0, 9):  # the secrets of other sums
        for kind, asked in ((SUM, metadata), (REVEAL, revealed)):
            with pytest.raises(InputError, match=f"Unknown secure sum: {number}. The session has 1 to 8"):
                client.reply(kind, Payload({"head": np.eye(2)}, asked | {"number": number}))
    assert path.stat().st_mode & 0o777 == 0o600


def test_sites_that_cannot_take_part_are_named_at_once(tmp_path):
    grid = build_grid(tmp_path, **{"reply-timeout": 60.0})
    grid.configs = {number: {"site": "nobody"} for number in grid.configs}
    with pytest.raises(
        InputError, match=r"None of 4 connected sites can take part\. Refused node 11: see the"
    ):
        serve(grid)


def test_a_restarted_site_keeps_its_new_node(tmp_path):
    grid = build_grid(tmp_path)
    settings = FederationConfig.from_run_config(grid.config)
    sums = SecureSums(GridTransport(grid, 0.0), settings, AuditLog.open(tmp_path / AUDIT), "f")
    sums.wait_for_clients()
    grid.configs = {**grid.configs, 99: {"site": "coast"}}  # the old node is still listed
    for _ in range(3):
        sums._refresh()
        assert sums.members["coast"].node == 99


def test_a_reply_that_is_not_of_32_bit_words_is_refused(secure, tmp_path):
    settings = FederationConfig.from_run_config(secure[0].config)
    sums = SecureSums(GridTransport(secure[0], 0.0), settings, AuditLog.open(tmp_path / AUDIT), "f")
    key = SiteKey(Ed25519PrivateKey.generate())
    metadata = {
        "client": "a", "key": key.public, "nonce": "n", "rows": 9, "fingerprint": "f", "round": 0,
    }  # fmt: skip
    for value in (0.5, -1.0, 2.0**32):
        reply = key.sign(Payload({"shares": np.full((2, 4), value)}, metadata))
        with pytest.raises(RejectedReplyError, match="32-bit"):
            sums._read(REVEAL, reply.to_records(), "n", {"M": 2})


class RelayingGrid(RecordingGrid):
    """A server in the middle: it replaces the keys of 'tide' by its own."""

    def _reply(self, message):
        if message.metadata.message_type == SHARES:
            request = Payload.from_records(message.content)
            at = request.metadata["clients"].index("tide")
            own = Participant("tide", request.metadata["session"], bytes(32)).public_keys(4)
            keys = request.arrays["keys"].copy()
            keys[at] = to_words(own)
            records = replace(request, arrays={**request.arrays, "keys": keys}).to_records()
            message.content.array_records["arrays"] = records.array_records["arrays"]
        return super()._reply(message)


@pytest.mark.usefixtures("short_sessions")
def test_keys_that_a_site_did_not_sign_are_refused(tmp_path, caplog):
    grid = build_grid(tmp_path)
    grid.__class__ = RelayingGrid
    with pytest.raises(InputError, match="Only 0 clients replied"):
        serve_prediction(grid, tmp_path)
    assert "Site 'tide' did not sign the keys" in caplog.text


def test_another_identity_of_a_known_site_is_refused(secure, tmp_path, caplog):
    private = Path(secure[0].config["out"]).with_name("private")
    shutil.copytree(private, tmp_path / "private")
    (tmp_path / "private" / "tide.key").unlink()  # the next run creates another one
    with pytest.raises(InputError, match="clients replied"):
        serve_prediction(build_grid(tmp_path), tmp_path)
    assert "Site 'tide' has another identity key" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_of_a_secure_run_refuses_plain_messages(site_client, kind):
    with pytest.raises(InputError, match="secure federations only"):
        site_client[0].reply(kind, Payload(metadata={"nonce": "0", "round": 1, "federation": "f"}))


def test_a_node_with_secure_set_refuses_plain_runs(secure):
    grid, _ = secure
    plain = FederationConfig.from_run_config(grid.config | {"secure": False})
    with pytest.raises(InputError, match="secure=true"):
        check_secure_node({"secure": True}, plain)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"procedure": "full-model+moment-head", "validation-fraction": 0.0}, "but no client has any"),
        ({"aggregation": "trimmed"}, "needs every client's return"),
        ({"secure": 1}, "true or false"),
    ],
)
def test_settings_that_need_more_than_totals_are_refused(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        serve(build_grid(tmp_path, **changes))


def test_a_finished_run_is_returned_without_asking_anyone(secure):
    grid, folder = secure
    asked = len(grid.asked)
    assert serve(grid).document == read_document(folder)
    assert len(grid.asked) == asked


@pytest.mark.slow
@pytest.mark.usefixtures("short_sessions")
def test_a_stopped_run_resumes_after_its_last_round(secure, tmp_path):
    """The server stops after round 1 of 2; a second command ends like one that was not stopped."""
    whole = serve(build_grid(tmp_path / "whole", rounds=2))
    silent = lambda site, kind, n: kind == SUM and n > whole.prediction.rounds + 3  # noqa: E731
    with pytest.raises(InputError, match="Only 0 clients replied"):
        serve(build_grid(tmp_path / "cut", silent, rounds=2))
    again = build_grid(tmp_path / "cut", rounds=2)
    resumed = serve(again)
    assert resumed.complete
    assert {kind for _, kind in again.asked} == set(SECURE_KINDS)
    assert sum(kind == SUM for _, kind in again.asked) == 2 * len(SITES)  # one round, no prediction
    np.testing.assert_allclose(resumed.averages["head"], whole.averages["head"], rtol=1e-12)
    np.testing.assert_array_equal(resumed.prediction.centralized, whole.prediction.centralized)


@pytest.mark.parametrize("is_stopped_again", [True, pytest.param(False, marks=SLOW)])
@pytest.mark.usefixtures("short_sessions")
def test_columns_are_summed_once_if_a_run_stops_in_its_prediction(tmp_path, is_stopped_again):
    """Two totals of columns that differ by one site would reveal its means and variances."""
    config = {"standardize": True, "procedure": "proximal"}
    silent = lambda site, kind, n: kind == SUM and n > 2  # noqa: E731
    stops = pytest.raises(InputError, match="Only 0 clients replied")
    with stops:
        serve(build_grid(tmp_path, silent, **config))
    (path,) = (tmp_path / "server").rglob(DOCUMENT)
    stopped = SecureRecord.load(path.parent)
    assert "0 of 1 round" in fedgram("runs", "list", path.parent).stdout
    assert "Stopped before the prediction" in fedgram("runs", "show", path.parent).stdout
    with stops if is_stopped_again else nullcontext():
        serve(build_grid(tmp_path, silent if is_stopped_again else None, **config))
    resumed = SecureRecord.load(path.parent)
    assert resumed.complete is not is_stopped_again
    assert resumed.document["scaling"] == stopped.document["scaling"]
    lines = [json.loads(line) for line in (path.parent / AUDIT).read_text().splitlines()]
    assert [line.get("task") for line in lines].count("scales") == 1


def test_a_resumed_run_refuses_a_site_whose_rows_changed(secure, tmp_path, caplog):
    document = read_document(secure[1])
    settings = FederationConfig.from_run_config(secure[0].config)
    fingerprints = document["fingerprints"] | {"tide": "of other rows"}
    sums = SecureSums(
        GridTransport(secure[0], 0.0), settings, AuditLog.open(tmp_path / AUDIT), "f",
        document["keys"], fingerprints,
    )  # fmt: skip
    with pytest.raises(InputError, match="Only 3 of 4 clients connected"):
        sums.wait_for_clients()
    assert "the rows of client 'tide' changed since the start of the run" in caplog.text


def test_a_run_with_other_settings_is_not_overwritten(secure):
    grid, _ = secure
    settings = FederationConfig.from_run_config(grid.config | {"epochs": 7})
    with pytest.raises(InputError, match="other settings: epochs"):
        run_secure_server(GridTransport(grid, 0.0), settings)
