"""Local training, the best round, moment heads, site effects and mixtures, all on validation rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgram import InputError, Penalty, Problem, TrainConfig
from fedgram.data.split import Split
from fedgram.federation.alone import choose_alone, sum_squares
from fedgram.federation.federation import Federation
from fedgram.federation.returns import Layers
from fedgram.federation.site_models import (
    absorb,
    feature_sums,
    fit_alone_heads,
    fit_heads,
    mean_squares,
    predict_part,
    to_layers,
    with_heads,
)
from fedgram.nets.backbones import ResMLP
from fedgram.runs.procedure import Procedure
from fedgram.runs.record import Run
from fedgram.theory.blend import MARGIN, BlendSums
from fedgram.theory.moment_head import FeatureSums, LinearHead
from fedgram.theory.own_heads import fit_own_heads
from fedgram.theory.site_ridge import fit_site_ridge

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    rounds=3, epochs=2, batch=16, features=6, penalty=Penalty(1e-3, 1e-3), learning_rate=1e-2,
    decay="run", precision="fp64",
)  # fmt: skip
FULL = "full-model+moment-head+site-effects"


def net():
    return ResMLP(3, width=8, blocks=1)


def site_problem(rows=(60, 41, 23), seed=0, shift=2.0, slope=1.0):
    """Sites with intercepts of their own; `slope` times the response of one site is that of the next."""
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal((n, 3)) for n in rows]
    targets = [
        slope**m * np.c_[np.tanh(x[:, 0]) + x[:, 1], x[:, 2]]
        + shift * m
        + 0.1 * rng.standard_normal((len(x), 2))
        for m, x in enumerate(inputs)
    ]
    problem = Problem.from_arrays(inputs, targets, kind="GENERATED")
    held_out = Problem.from_arrays(
        [rng.standard_normal((30, 3)) for _ in rows], [np.zeros((30, 2)) for _ in rows], kind="GENERATED"
    )
    test = {
        client: replace(split, targets=np.c_[np.tanh(x[:, 0]) + x[:, 1], x[:, 2]] + shift * m)
        for m, (client, split) in enumerate(held_out.train.items())
        for x in [split.inputs]
    }
    return replace(problem, test=test).hold_out_validation(0.25)


def far_away(parts):
    """Rows whose inputs and targets are far outside those that a network was trained on."""
    return {client: Split(5 * split.inputs, 5 * split.targets) for client, split in parts.items()}


def clip_to_targets(predicted, *parts):
    """Clip predictions (N_m, C) a margin beyond the targets of these parts, written out."""
    clipped = []
    for values, rows in zip(predicted, zip(*parts, strict=True), strict=True):
        targets = np.concatenate([y.numpy() for _, y in rows])
        low, high = targets.min(axis=0), targets.max(axis=0)
        clipped.append(np.clip(values, low - MARGIN * (high - low), high + MARGIN * (high - low)))
    return clipped


def train(procedures, problem=None, config=CONFIG, seed=0, backbone=net):
    runs = [Run(Procedure.parse(each), seed) for each in procedures]
    federation = Federation(problem or site_problem(), backbone, runs, config, CPU)
    records = list(federation.rounds())
    return federation, records


@pytest.mark.parametrize("procedure", ["local", "full-model"])
def test_a_validation_row_that_overflows_is_never_an_error_of_zero(procedure):
    problem = site_problem()
    problem.validation["client 1"].inputs[0] = 3e38
    federation, _ = train([procedure], problem, replace(CONFIG, precision="fp32"))
    (reason,) = federation.stopped.values()
    assert reason == "client 'client 1' diverged in round 1"
    chosen = federation.chosen.best
    assert chosen.error[0] == np.inf
    assert chosen.round[0] == 1
    assert chosen.error[1:].isfinite().all() == (procedure == "local")


def test_a_run_with_moment_heads_contains_the_models_of_fedavg():
    problem, runs = (
        site_problem(),
        [Run(Procedure.parse(each), 0) for each in (FULL + "+blended", "full-model")],
    )
    watched = Federation(problem, net, runs[:1], CONFIG, CPU, keeps_trained=True)
    trained = Federation(problem, net, runs[1:], CONFIG, CPU)
    for federation in (watched, trained):
        assert len(list(federation.rounds(measured=False))) == CONFIG.rounds
    expected = trained.predict(runs[1], trained.site_models(runs[1]), "test")
    for own, other in zip(watched.predict_trained(runs[0]), expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9)


def test_moment_head_is_the_ridge_head_of_the_pooled_rows():
    federation, _ = train(["full-model+moment-head"])
    clients = federation.clients
    tensors = clients.of_run(federation._current_models(), 0)
    parts = [feature_sums(clients, tensors, part, 0) for part in ("train", "validation")]
    u, y = [], []
    for m, (inputs, targets) in enumerate(clients.data.train):
        u.append(
            clients.stack.outputs({n: v[m : m + 1] for n, v in tensors.items()}, inputs[None])[0].numpy()
        )
        y.append(targets.numpy())
    u, y = np.concatenate(u), np.concatenate(y)
    assert parts[0].total().count == len(u)
    head = parts[0].total().ridge(1e-2)
    centered = u - u.mean(0)
    scale = np.diag((centered**2).sum(0))
    expected = np.linalg.solve(centered.T @ centered + 1e-2 * scale, centered.T @ (y - y.mean(0))).T
    np.testing.assert_allclose(head.weight, expected, rtol=1e-10, atol=1e-12)


def test_only_sums_reach_the_head_so_the_partition_does_not_matter():
    problem = site_problem()
    federation, _ = train(["full-model+moment-head"], problem)
    clients = federation.clients
    tensors = clients.of_run(federation._current_models(), 0)
    sums = feature_sums(clients, tensors, "train", 0)
    rows = [targets for _, targets in clients.data.train]
    joined = torch.cat([inputs for inputs, _ in clients.data.train])
    u = clients.stack.outputs({n: v[:1] for n, v in tensors.items()}, joined[None])[0].numpy()
    cuts = FeatureSums.stack(
        [
            FeatureSums.from_rows(*each)
            for each in zip(np.array_split(u, 7), np.array_split(torch.cat(rows).numpy(), 7), strict=True)
        ]
    )
    for ours, theirs in zip(vars(sums.total()).values(), vars(cuts.total()).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-10)


def test_local_models_never_hear_of_each_other():
    problem = site_problem()
    alone = replace(
        problem,
        train={client: problem.train[client] if m == 0 else replace(split, targets=split.targets + 50)
               for m, (client, split) in enumerate(problem.train.items())},
    )  # fmt: skip
    ours, theirs = (train(["local"], each)[0] for each in (problem, alone))
    models = [each.site_models(each.runs[0]).tensors for each in (ours, theirs)]
    for name in ours.clients.stack.parameters:
        assert torch.equal(*(each[name][0] for each in models))
    for name in ("feature.weight", "head.bias"):
        assert not torch.equal(*(each[name][1] for each in models))


def test_the_best_round_is_kept():
    config = replace(CONFIG, rounds=6, learning_rate=0.3, clip=100.0)
    federation, _ = train(["full-model", "local"], config=config)
    best = federation.chosen.best
    assert (best.round[0::2] == best.round[0]).all()  # one round for all sites of a shared model
    again = Federation(site_problem(), net, federation.runs, config, CPU)
    for number, _ in enumerate(again.rounds(), 1):
        if number == best.round[0]:
            expected = {name: value.clone() for name, value in again._current_models().items()}
    for name, value in federation.site_models(federation.runs[0]).tensors.items():
        torch.testing.assert_close(value, expected[name][0::2].to(value.dtype))
    errors = best.error[0::2]
    assert (errors == errors[0]).all()


def test_site_effects_find_the_intercepts_that_a_shared_head_misses():
    federation, _ = train(["full-model", "full-model+moment-head", FULL], config=replace(CONFIG, rounds=10))
    errors = {}
    for run in federation.recorded:
        models = federation.site_models(run)
        predicted = federation.predict(run, models, "test")
        errors[run.procedure.name] = mean_squares(
            predicted, federation.clients.data.target_arrays("test")
        ).mean()
    assert errors[FULL] < 0.5 * errors["full-model+moment-head"]
    assert errors["full-model+moment-head"] < errors["full-model"]


def test_solved_heads_are_written_into_the_last_layers():
    federation, _ = train([FULL])
    run = federation.recorded[0]
    clients, models = federation.clients, federation.site_models(run)
    best = clients.of_run(federation.chosen.best.tensors, 0)
    heads = fit_heads(clients, best, 0, deviations=True)
    predicted = federation.predict(run, models, "test")
    for m, (inputs, _) in enumerate(clients.data.test):
        u = clients.stack.outputs({n: v[m : m + 1] for n, v in best.items()}, inputs[None])[0].numpy()
        np.testing.assert_allclose(predicted[m], heads.sites[m].predict(u), rtol=1e-10, atol=1e-10)
    assert models.chosen["ridge"] == heads.ridge
    shared = Layers.from_parameters({name: value[None] for name, value in models.shared.items()})
    features = shared.features(torch.tensor(u)[None])
    ours = (features @ shared.head.mT + shared.bias[:, None])[0].numpy()
    np.testing.assert_allclose(ours, heads.shared.predict(u), rtol=1e-10, atol=1e-10)


def test_absorbed_heads_predict_what_the_head_predicts():
    rng = np.random.default_rng(0)
    layers = Layers(*(torch.tensor(rng.standard_normal(s)) for s in ((3, 2, 6), (3, 2), (3, 6, 8), (3, 6))))
    head = LinearHead(rng.standard_normal((2, 8)), rng.standard_normal(2))
    u = rng.standard_normal((3, 10, 8))
    for moved in (absorb(layers, head), to_layers(head, layers)):
        ours = moved.features(torch.tensor(u)) @ moved.head.mT + moved.bias[:, None]
        np.testing.assert_allclose(ours.numpy(), head.predict(u), rtol=1e-11, atol=1e-11)


def test_training_goes_on_from_a_moment_head():
    federation, records = train(["full-model+moment-head=2", "full-model+moment-head"])
    assert np.array_equal(*(records[1][run].head for run in federation.recorded))  # not before round 2 ended
    assert not np.array_equal(*(records[2][run].head for run in federation.recorded))


def test_training_goes_on_without_the_validation_rows(monkeypatch):
    """They choose the ridge, of which there is one here, and the round."""
    monkeypatch.setattr("fedgram.theory.site_effects.RIDGES", (1.0,))
    problem = site_problem()
    other = replace(
        problem,
        validation={name: replace(part, targets=-part.targets) for name, part in problem.validation.items()},
    )
    heads = []
    for each in (problem, other):
        federation, records = train(["full-model+moment-head=2"], each)
        heads.append(records[2][federation.recorded[0]].head)
    np.testing.assert_array_equal(*heads)


@pytest.mark.parametrize("is_far", [False, True])
def test_a_blended_run_mixes_in_the_local_model(is_far):
    problem = site_problem()
    problem = replace(problem, test=far_away(problem.test)) if is_far else problem
    federation, records = train([FULL + "+blended", FULL], problem)
    blended, plain = federation.recorded
    assert set(records[0]) == {blended, plain}  # the companion is not recorded
    assert federation.runs[2].procedure.local
    models = federation.site_models(blended)
    shares = models.shares
    assert ((shares >= 0) & (shares <= 1)).all()
    ours = federation.predict(blended, models, "test")
    shared = federation.predict(plain, federation.site_models(plain), "test")
    local = federation.predict(federation.runs[2], replace(models, tensors=models.local, local={}), "test")
    data = federation.clients.data
    limited = clip_to_targets(local, data.train, data.validation)
    assert np.array_equal(np.concatenate(limited), np.concatenate(local)) != is_far
    for m, share in enumerate(shares):
        expected = share * limited[m] + (1 - share) * shared[m]
        np.testing.assert_allclose(ours[m], expected, rtol=1e-10, atol=1e-10)


def test_a_local_run_solves_the_head_of_each_site():
    federation, _ = train(["local"])
    (local,), clients, chosen = federation.recorded, federation.clients, federation.chosen
    trained = clients.of_run(chosen.best.tensors, 0)
    sums = [feature_sums(clients, trained, part, 0) for part in ("train", "validation")]
    heads = fit_own_heads(*sums, common=False)
    for m, (inputs, _) in enumerate(clients.data.test):
        outputs = clients.stack.outputs({name: each[[m]] for name, each in trained.items()}, inputs[None])
        expected = heads.sites[m].predict(outputs[0].double().numpy())
        found = federation.predict(local, federation.site_models(local), "test")[m]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_sites_alone_have_the_models_of_a_local_run_ridge_regression_and_their_means():
    federation, _ = train([FULL + "+blended", "local"])
    blended, local = federation.recorded
    predicted, data = federation.predict_alone(blended), federation.clients.data
    networks = federation.predict(local, federation.site_models(local), "test")
    np.testing.assert_array_equal(np.concatenate(predicted["network"]), np.concatenate(networks))
    for m, rows in enumerate(zip(data.train, data.validation, data.test, strict=True)):
        fitted, held_out, test = ((x.numpy(), y.numpy()) for x, y in rows)
        inputs, known = (np.concatenate(each) for each in zip(fitted, held_out, strict=True))
        expected = fit_site_ridge(inputs, known).predict(test[0])
        np.testing.assert_allclose(predicted["ridge regression"][m], expected)
        np.testing.assert_allclose(predicted["mean"][m], np.tile(known.mean(axis=0), (len(test[1]), 1)))
    targets = [y.numpy() for _, y in data.test]
    errors = {method: sum_squares(rows, targets) for method, rows in predicted.items()}
    assert choose_alone(predicted, targets) == min(errors, key=errors.get)
    diverged = [np.full_like(y, np.nan) for y in targets]
    assert choose_alone({"network": diverged, "mean": predicted["mean"]}, targets) == "mean"


def test_images_alone_have_no_ridge_regression():
    images = {
        part: {name: replace(split, inputs=split.inputs[:, :, None]) for name, split in held.items()}
        for part, held in vars(site_problem()).items()
        if part in ("train", "validation", "test")
    }
    problem = replace(site_problem(), **images)
    backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 5))
    federation, _ = train([FULL + "+blended"], problem, backbone=backbone)
    assert set(federation.predict_alone(federation.recorded[0])) == {"network", "mean"}


@pytest.mark.parametrize("is_far", [False, True])
def test_shares_compare_models_that_have_not_seen_the_validation_rows(is_far):
    """A head that was fitted on these rows too would seem better, and get a larger share."""
    problem = site_problem(shift=0.0, slope=-0.1)
    problem = replace(problem, validation=far_away(problem.validation)) if is_far else problem
    federation, _ = train(["full-model+moment-head+blended"], problem)
    (blended,), clients = federation.recorded, federation.clients
    models = federation.site_models(blended)
    best = clients.of_run(federation.chosen.best.tensors, 0)
    unseen = with_heads(best, fit_heads(clients, best, 0, deviations=True).unseen)
    targets = [y.numpy() for _, y in clients.data.validation]
    common = clients.of_run(federation.chosen.common.tensors, 1)
    own_unseen = with_heads(common, fit_alone_heads(clients, common, 1, common=True).unseen)
    own, optimistic_own = (
        predict_part(clients, each, "validation", 1) for each in (own_unseen, models.local)
    )
    shared, optimistic_shared = (
        predict_part(clients, each, "validation", 0) for each in (unseen, models.tensors)
    )
    limited = clip_to_targets(own, clients.data.train)
    assert np.array_equal(np.concatenate(limited), np.concatenate(own)) != is_far
    honest = BlendSums.from_rows(limited, shared, targets)
    np.testing.assert_allclose(models.shares, honest.shares(), rtol=1e-10)
    if is_far:
        return
    assert BlendSums.from_rows(own, optimistic_shared, targets).prior().share < honest.prior().share
    assert BlendSums.from_rows(optimistic_own, shared, targets).prior().share > honest.prior().share


def test_validation_rows_are_needed():
    problem = replace(site_problem(), validation={})
    with pytest.raises(InputError, match="chooses strengths on validation rows"):
        train([FULL], problem)


def test_resumed_training_chooses_the_same_models():
    whole, _ = train([FULL + "+blended"])
    first = Federation(site_problem(), net, whole.recorded, CONFIG, CPU)
    next(first.rounds())
    state = {name: value.clone() for name, value in first.state().items()}
    second = Federation(site_problem(), net, whole.recorded, CONFIG, CPU)
    second.load(state)
    list(second.rounds())
    ours, theirs = (each.site_models(each.recorded[0]) for each in (whole, second))
    for name, value in ours.to_arrays(torch.float64).items():
        np.testing.assert_allclose(theirs.to_arrays(torch.float64)[name], value, rtol=1e-9, atol=1e-9)


def test_rounds_that_are_not_measured_train_the_same_models():
    measured, _ = train([FULL, "local"])
    bare = Federation(site_problem(), net, measured.recorded, CONFIG, CPU)
    assert list(bare.rounds(measured=False)) == [{}, {}, {}]
    for run in measured.recorded:
        for name, value in measured.site_models(run).tensors.items():
            assert torch.equal(bare.site_models(run).tensors[name], value)
