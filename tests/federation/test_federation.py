"""What happens around training: runs that diverge, going on from a state, progress, refusals."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch

from fedgram import InputError, Penalty
from fedgram.federation.federation import Federation
from fedgram.nets.fit import Fit
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.runs.train_config import TrainConfig
from tests.helpers.plain_loop import CPU, OwnNet, assert_same_round, pictures, tabular, trained

SETTINGS = TrainConfig(
    rounds=3, epochs=2, batch=16, features=5, penalty=Penalty(0.02, 0.05), clip=1.0, precision="fp64"
)
GOOD = [Run(Procedure.parse(words), 4) for words in ("aligned", "solved+corrected+offset", "full-model")]
NETS = {"own": partial(OwnNet), "own with BatchNorm": partial(OwnNet, norm=True)}


def problem():
    return tabular((40, 27, 18))


@cache
def sound_runs(backbone):
    """Records of the GOOD runs alone."""
    return trained(problem(), NETS[backbone], GOOD, SETTINGS)[1]


def after_training(monkeypatch, round, change):
    """Let change(parameters) act on every later stack when the training of a round ends."""
    whole = Fit.round

    def changed(self, number, advanced=lambda epochs: None):
        losses = whole(self, number, advanced)
        if number == round:
            change(self.stack.parameters)
        return losses

    monkeypatch.setattr(Fit, "round", changed)


@pytest.mark.parametrize(("words", "value"), [
    ("ordinary", float("nan")), ("aligned", float("inf")),
    ("solved+corrected+offset", -float("inf")), ("full-model", float("inf")),
])  # fmt: skip
@pytest.mark.parametrize("backbone", NETS)
def test_a_run_that_diverges_is_named_and_leaves_the_others_alone(monkeypatch, backbone, words, value):
    bad = Run(Procedure.parse(words), 9)
    expected = sound_runs(backbone)
    runs = [GOOD[0], bad, *GOOD[1:]]
    broken = 2 * len(runs) + 1
    after_training(monkeypatch, 2, lambda stack: stack["backbone.second.weight"][broken, 0, 0].fill_(value))
    federation, recorded = trained(problem(), NETS[backbone], runs, SETTINGS)
    assert federation.stopped == {bad: "client 'site 2' diverged in round 2"}
    assert [record.number for record in recorded[bad]] == [1]
    for run in GOOD:
        assert len(recorded[run]) == SETTINGS.rounds
        for ours, theirs in zip(recorded[run], expected[run], strict=True):
            assert_same_round(ours, theirs, 1e-12)
    assert all(each.isfinite().all() for each in federation.clients.stack.parameters.values())


def test_divergence_within_a_round_spreads_to_no_other_model():
    """The parameter turns infinite after the first epoch; the second trains on with it."""
    bad = Run(Procedure(), 9)
    expected = sound_runs("own")
    federation = Federation(problem(), NETS["own"], [bad, *GOOD], SETTINGS, CPU)
    told = []

    def advanced(epochs):
        told.append(epochs)
        if len(told) in (3, 5):  # the first epoch of round 2, and again of round 3
            federation.clients.stack.parameters["head.weight"][0, 0, 0] = float("inf")

    records = list(federation.rounds(advanced))
    assert told == [1, 2] * 3
    assert federation.stopped == {bad: "client 'site 0' diverged in round 2"}
    for run in GOOD:
        for record, theirs in zip(records, expected[run], strict=True):
            assert_same_round(record[run], theirs, 1e-12)


@pytest.mark.parametrize("words", ["solved", "ordinary"])
def test_outputs_that_overflow_are_divergence_too(monkeypatch, words):
    """All parameters are finite, but not what the backbone makes of rows; the other runs must live on."""
    bad = Run(Procedure.parse(words), 9)
    runs = [*GOOD, bad]

    def blow_up(stack):
        for name in ("backbone.1.outer.weight", "backbone.2.outer.weight"):
            stack[name][len(runs) - 1] *= 1e200

    after_training(monkeypatch, 2, blow_up)
    federation, recorded = trained(problem(), "resmlp-small", runs, SETTINGS)
    assert federation.stopped == {bad: "client 'site 0' diverged in round 2"}
    assert all(len(recorded[run]) == SETTINGS.rounds for run in GOOD)


@pytest.mark.parametrize("backbone", NETS)
def test_going_on_from_a_state_is_going_on(backbone):
    data, runs = problem(), [*GOOD, Run(Procedure.parse("private"), 2)]
    _, expected = trained(data, NETS[backbone], runs, SETTINGS)
    first = Federation(data, NETS[backbone], runs, replace(SETTINGS, rounds=1), CPU)
    list(first.rounds())
    state = {name: value.clone() for name, value in first.state().items()}
    second = Federation(data, NETS[backbone], runs, SETTINGS, CPU)
    second.load(state)
    assert second.finished == 1
    for record, number in zip(second.rounds(), (2, 3), strict=True):
        for run in runs:
            ours, theirs = record[run], expected[run][number - 1]
            assert ours.number == number
            assert_same_round(ours, theirs, 1e-15)
    assert list(second.rounds()) == []


def test_a_run_that_diverged_stays_stopped_when_training_goes_on_from_a_state(monkeypatch):
    """Its broken model is 0 in the state: without the mark, zeros would pass for a trained client."""
    bad = Run(Procedure(), 9)
    after_training(monkeypatch, 1, lambda stack: stack["head.weight"][0, 0, 0].fill_(float("inf")))
    first = Federation(problem(), NETS["own"], [bad, *GOOD], replace(SETTINGS, rounds=1), CPU)
    list(first.rounds())
    assert list(first.stopped) == [bad]
    second = Federation(problem(), NETS["own"], [bad, *GOOD], SETTINGS, CPU)
    second.load(first.state())
    assert all(bad not in record for record in second.rounds())


def test_the_first_broadcast_is_what_all_clients_drew():
    runs = [Run(Procedure(), 1), Run(Procedure(independent=True), 1), Run(Procedure(), 2)]
    federation = Federation(problem(), NETS["own"], runs, SETTINGS, CPU)
    torch.testing.assert_close(federation.head[0], federation.head[1], rtol=0, atol=0)
    assert not torch.equal(federation.head[0], federation.head[2])
    heads = federation.clients.stack.parameters["head.weight"].unflatten(0, (3, 3))
    assert (heads == federation.head).all()
    first = federation.clients.stack.parameters["backbone.first.weight"].unflatten(0, (3, 3))
    assert (first[:, 0] == first[0, 0]).all()
    assert (first[0, 1] != first[1, 1]).any()


def test_clients_count_by_their_rows():
    federation = Federation(problem(), NETS["own"], GOOD[:1], SETTINGS, CPU)
    values = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    wanted = np.array([40, 27, 18]) @ values.numpy() / 85
    np.testing.assert_allclose(federation.average(values), wanted[None], rtol=1e-15)


@pytest.mark.parametrize("words", ["ordinary", "proximal+private", "aligned+corrected", "solved"])
def test_errors_under_a_rule_do_not_depend_on_the_rule_of_the_run(words):
    """In the first round, in which all of them train alike."""
    settings = replace(SETTINGS, rounds=1)
    other = "+".join([*words.replace("+private", "").split("+"), "offset"])
    runs = [Run(Procedure.parse(each), 0) for each in (words, other)]
    (record,) = Federation(problem(), OwnNet, runs, settings, CPU).rounds()
    ours, theirs = (record[run] for run in runs)
    np.testing.assert_allclose(ours.train_mse, theirs.train_mse, rtol=1e-10)
    np.testing.assert_allclose(ours.test_mse, theirs.test_mse, rtol=1e-10)
    assert len({f"{error:.6f}" for error in ours.train_mse[0]}) == 3


def test_centered_targets_are_centered_before_they_are_rounded():
    """Far from 0, where single precision is coarse."""
    near = problem()
    far = replace(
        near, train={name: replace(split, targets=split.targets + 1e6) for name, split in near.train.items()}
    )
    run, settings = Run(Procedure.parse("centered"), 0), replace(SETTINGS, precision="fp32")
    ours, theirs = (Federation(each, OwnNet, [run], settings, CPU) for each in (near, far))
    for one, other in zip(ours.rounds(), theirs.rounds(), strict=True):
        np.testing.assert_allclose(other[run].head, one[run].head, atol=1e-5)


def test_all_rules_for_the_bias_are_the_same_without_federation():
    run = Run(Procedure.parse("centralized"), 0)
    for record in Federation(problem(), OwnNet, [run], SETTINGS, CPU).rounds():
        errors = record[run].train_mse[0]
        np.testing.assert_allclose(errors, errors[0], rtol=1e-10)


def test_lower_precision_computes_the_same_run_less_exactly():
    run, data = Run(Procedure.parse("proximal+corrected"), 3), problem()
    _, exact = trained(data, NETS["own"], [run], SETTINGS)
    for precision, most in (("fp32", 1e-5), ("tf32", 1e-5), ("fp16", 3e-3), ("bf16", 2e-2)):
        _, rounded = trained(data, NETS["own"], [run], replace(SETTINGS, precision=precision))
        error = max(np.abs(a.head - b.head).max() for a, b in zip(exact[run], rounded[run], strict=True))
        assert 0 < error < most, precision
        assert rounded[run][-1].head.dtype == np.float64


def test_centralized_runs_are_not_stacked_with_others():
    runs = [Run(Procedure(), 0), Run(Procedure(centralized=True), 0)]
    with pytest.raises(InputError, match=r"^A stack has federated or centralized runs, not") as refused:
        Federation(problem(), NETS["own"], runs, SETTINGS, CPU)
    assert refused.value.field == "procedure"


def test_too_few_features_are_refused():
    said = r"^features=1 is too small for 2 targets\. Use at least 2\.$"
    with pytest.raises(InputError, match=said) as refused:
        Federation(problem(), NETS["own"], GOOD, replace(SETTINGS, features=1), CPU)
    assert refused.value.field == "features"
    Federation(problem(), NETS["own"], GOOD, replace(SETTINGS, features=2), CPU)


@pytest.mark.parametrize(("batch", "client"), [(39, 0), (26, 1), (17, 2)])
def test_one_row_left_for_a_minibatch_is_refused_where_there_is_batchnorm(batch, client):
    settings, name = replace(SETTINGS, batch=batch), problem().clients[client]
    said = rf"^Client '{name}' has \d+ rows, so its last .* Choose a batch other than {batch}\.$"
    with pytest.raises(InputError, match=said) as refused:
        Federation(problem(), NETS["own with BatchNorm"], GOOD, settings, CPU)
    assert (refused.value.client, refused.value.field) == (name, "batch")
    Federation(problem(), NETS["own"], GOOD, settings, CPU)
    Federation(problem(), NETS["own with BatchNorm"], GOOD, replace(settings, batch=batch + 1), CPU)


def test_images_go_through_a_round_in_single_precision_without_test_rows():
    data = replace(pictures(rows=(6, 5), shape=(16, 16, 3)), test={})
    short = replace(SETTINGS, rounds=1, epochs=1, batch=6, precision="tf32")
    _, recorded = trained(data, "residual-cnn-small", [GOOD[0]], short)
    assert np.isfinite(recorded[GOOD[0]][0].train_mse).all()
    assert np.isnan(recorded[GOOD[0]][0].test_mse).all()


@pytest.mark.parametrize("words", [["ordinary", "aligned"], ["full-model", "solved+offset", "private"]])
def test_rounds_without_measurements_train_the_same_models(words):
    """Backbone outputs are then computed for return rules that need them only."""
    runs = [Run(Procedure.parse(each), 4) for each in words]
    plain, measured = (Federation(problem(), NETS["own"], runs, SETTINGS, CPU) for _ in range(2))
    assert list(plain.rounds(measured=False)) == [{}] * SETTINGS.rounds
    list(measured.rounds())
    for name, value in measured.state().items():
        torch.testing.assert_close(plain.state()[name], value, rtol=1e-12, atol=1e-12)


def test_outputs_of_a_group_are_those_of_each_client():
    data = tabular((30, 30, 18))
    same = {name: split.take(slice(9)) for name, split in data.train.items()}
    federation = Federation(replace(data, test=same), NETS["own"], GOOD, SETTINGS, CPU)
    clients, count = federation.clients, len(federation.runs)
    assert clients.groups == (slice(0, 2), slice(2, 3))
    for part, group in product(("train", "test"), clients.groups):
        found, some = clients.outputs(part, group, range(count)), clients.outputs(part, group, [1])
        for k in range(len(found)):
            m, r = group.start + k // count, k % count
            inputs, _ = getattr(clients.data, part)[m]
            model = {name: value[[m * count + r]] for name, value in clients.stack.tensors.items()}
            expected = clients.stack.outputs(model, inputs[None])[0]
            torch.testing.assert_close(found[k], expected)
            if r == 1:
                torch.testing.assert_close(some[m - group.start], expected)


def test_measurements_do_not_depend_on_groups(monkeypatch):
    """Clients with equally many rows are measured together."""
    data = tabular((24, 24, 24))
    same = {name: split.take(slice(7)) for name, split in data.train.items()}
    runs = [Run(Procedure.parse(each), 3) for each in ("full-model", "solved+corrected+offset", "ordinary")]

    def measure():
        federation = Federation(replace(data, test=same), NETS["own"], runs, SETTINGS, CPU)
        return len(federation.clients.groups), list(federation.rounds())

    count, together = measure()
    monkeypatch.setattr("fedgram.federation.clients.NUMBERS_AT_ONCE", 1)
    alone_count, alone = measure()
    assert (count, alone_count) == (1, 3)
    for found, expected in zip(together, alone, strict=True):
        for run in runs:
            assert_same_round(found[run], expected[run], 1e-10)
