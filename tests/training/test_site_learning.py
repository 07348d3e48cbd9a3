"""Plans of networks for natural sites: rounds and minibatches by the number of rows."""

from dataclasses import replace

import numpy as np
import pytest

from fedgram import FederatedRegressor, Problem, advise
from fedgram.runs.advice import AUTO, FEDAVG, POOLED
from fedgram.training import regressor, site_learning
from fedgram.training.site_learning import (
    LARGE_BATCH,
    LARGEST_BATCH,
    MANY,
    POOLED_STEPS,
    Plan,
    learn,
    plans,
    pooled_config,
)


def make_problem(rows=40):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((rows, 2)) for _ in range(3)]
    targets = [np.tanh(x[:, :1]) + m for m, x in enumerate(inputs)]
    problem = Problem.from_arrays(inputs, targets, kind="GENERATED")
    return replace(problem, test=problem.train).hold_out_validation(0.2)


def test_small_tables_have_the_plans_of_the_benchmarks():
    assert plans(MANY) == plans()
    assert [plan.config.batch for plan in plans()] == [64, 64, 64]
    config = plans()[0].config
    assert pooled_config(config, MANY) == config


def test_large_tables_have_fewer_rounds_and_larger_minibatches():
    for small, large, largest in zip(plans(), plans(MANY + 1), plans(16 * MANY), strict=True):
        assert large.config.rounds == small.config.rounds
        assert largest.config.rounds == small.config.rounds // 2
        assert large.config.batch == largest.config.batch == LARGE_BATCH
        assert large.config.learning_rate == pytest.approx(3 * small.config.learning_rate)
    assert Plan.from_backbone("wide-deep-64", training_rows=16 * MANY) == plans(16 * MANY)[0]
    assert Plan.from_backbone("wide-deep-64", rounds=7, training_rows=16 * MANY).config.rounds == 7


def test_networks_of_ones_own_keep_their_rate():
    network = object()
    assert Plan.from_backbone(network, training_rows=16 * MANY).config == plans()[0].config


@pytest.mark.parametrize("rows", [MANY + 1, 10 * MANY, 100 * MANY])
def test_pooled_networks_take_enough_steps(rows):
    federated = plans(rows)[0].config
    config = pooled_config(federated, rows)
    assert replace(config, batch=federated.batch) == federated
    steps = rows * config.epochs * config.rounds / config.batch
    assert steps >= POOLED_STEPS
    assert config.batch == LARGEST_BATCH or steps < 1.1 * POOLED_STEPS


class Planned(Exception):
    """A plan, instead of its training."""


@pytest.mark.parametrize("backbone", ["wide-deep-64", None])
def test_plans_fit_the_rows_of_the_table(backbone, monkeypatch):
    def stop(problem, plan, *others):
        raise Planned(plan)

    monkeypatch.setattr(site_learning, "MANY", 10)
    for module in (regressor, site_learning):
        monkeypatch.setattr(module, "learn", stop)
    X, sites = np.random.default_rng(0).standard_normal((60, 1)), np.repeat(["a", "b"], 30)
    with pytest.raises(Planned) as planned:
        FederatedRegressor(backbone=backbone).fit(X, X[:, 0], sites=sites)
    assert planned.value.args == (plans(48)[0],)


def test_pooled_rows_are_trained_in_larger_minibatches(monkeypatch):
    problem, plan = make_problem(), Plan.from_backbone("wide-deep-64", rounds=1)
    assert learn(problem, plan, [POOLED]).federation.config == plan.config
    monkeypatch.setattr(site_learning, "MANY", 10)
    monkeypatch.setattr(site_learning, "POOLED_STEPS", 2)
    assert learn(problem, plan, [POOLED]).federation.config == replace(plan.config, batch=96)


def test_advice_reads_fedavg_from_the_training_of_the_recommended_model():
    problem, plan = make_problem(), Plan.from_backbone("wide-deep-64", rounds=2)
    expected = learn(problem, plan, [FEDAVG])
    predicted = expected.predict(FEDAVG, expected.models(FEDAVG), "test")
    truth = [split.targets for split in problem.test.values()]
    error = np.mean((np.concatenate(predicted) - np.concatenate(truth)) ** 2)
    found = {each.name: each for each in advise(problem, plan=plan).procedures}
    assert found[FEDAVG].standardized_mse == pytest.approx(error, rel=1e-4)
    assert found[AUTO].standardized_mse < error
