"""Compare every number that the explorer shows with Python's, to 1e-9."""

from dataclasses import replace

import numpy as np

from fedgram import Moments, Penalty, correct, effects, explain, predict
from fedgram.display.explorer.page import describe_data
from fedgram.ufm.instances import random_covariances

# All that the explorer shows, as plain lists. Heads are defined up to a rotation: their Grams are compared.
READ = """() => {
  const { result, state, effects, heads } = explorer;
  if (result.error) return { error: result.error };
  const { gap, clients, pooled, barycenter } = result;
  const list = (values) => Array.from(values);
  const gramOf = (head) => {
    const C = result.size;
    return Array.from({ length: C * C }, (_, k) =>
      Array.from({ length: C }, (_, j) => head[Math.floor(k / C) * C + j] * head[(k % C) * C + j])
        .reduce((a, b) => a + b, 0));
  };
  return {
    error: "", weights: list(pooled.weights), grams: clients.map((client) => list(client.gram)),
    margin: clients.map((client) => client.margin), barycenter: list(barycenter.gram),
    within: list(result.within), centralized: list(result.centralized), converged: barycenter.converged,
    terms: Object.values(gap.terms).map(list), traces: list(gap.traces), relative: gap.relative,
    shares: gap.shares.map((x) => (Number.isNaN(x) ? null : x)),
    clientShares: gap.clientShares.map((x) => (Number.isNaN(x) ? null : x)),
    byClient: gap.byClient, notes: result.notes, start: list(state.start),
    last: gramOf(heads[heads.length - 1]),
    effects: ["shared", "private", "corrected"].map((way) =>
      effects.map((each) => [list(each[way].error), list(each[way].difference)])),
  };
}"""


def corrected_moments(moments, penalty, strength):
    """Moments whose plain problem is the corrected one: (1 - γ) Σ_m + γ Σ_cen, with the same Σ_cen."""
    if strength == 0:
        return moments
    return replace(
        moments,
        mean=moments.pooled.mean + np.sqrt(1 - strength) * moments.offset,
        covariance=correct(moments, penalty, strength).covariance,
    )


def random_problem(rng):
    """Draw a problem with 1 to 6 targets and 2 to 12 clients; in some, clients are not fully active."""
    targets, clients = int(rng.integers(1, 7)), int(rng.integers(2, 13))
    moments = Moments(
        count=rng.integers(targets + 1, 500, clients),
        mean=rng.uniform(0, 2) * rng.standard_normal((clients, targets)),
        covariance=random_covariances(rng, (clients,), targets, (10.0 ** rng.uniform(-4, 0), 3.0)),
        client_weights=rng.uniform(0.2, 2.0, clients) if rng.random() < 0.5 else None,
    )
    penalty = Penalty(*10.0 ** rng.uniform(-3, 0.3, 2))
    return describe_data(moments, penalty, "random", float(rng.choice([0.0, 0.0, rng.uniform(), 1.0])))


def assert_equal(shown, expected, scale):
    np.testing.assert_allclose(np.ravel(shown), np.ravel(expected), rtol=1e-9, atol=1e-9 * scale)


def check_problem(page, given):
    """Open a problem in the page and compare it; return whether all clients are fully active."""
    moments = moments_of(given)
    penalty, strength = Penalty(given["features"], given["head"]), given["strength"]
    prediction = predict(corrected_moments(moments, penalty, strength), penalty)
    gap = explain(prediction)
    page.evaluate("(given) => { explorer.open({ ...given, position: 4 }); }", given)
    shown = page.evaluate(READ)
    assert shown["error"] == ""
    assert shown["converged"]
    scale = float(gap.scale)
    assert_equal(shown["weights"], moments.client_weights, 1.0)
    assert_equal(shown["margin"], prediction.activity.margin, np.abs(moments.covariance).max())
    for name in ("grams", "within", "centralized"):
        assert_equal(shown[name], getattr(prediction, name), scale)
    assert_equal(shown["barycenter"], prediction.barycenter.gram, scale)
    assert_equal(shown["terms"], [gap.mean, gap.covariance, gap.averaging], scale)
    assert_equal(shown["traces"], gap.traces, scale)
    assert_equal(shown["relative"], gap.relative, 1.0)
    assert_equal(shown["byClient"], gap.by_client.T, scale)
    if not gap.negligible:
        # Shares divide by the gap, so that they are as accurate as it is large.
        digits = scale / abs(float(gap.trace))
        assert_equal(np.array(shown["shares"], dtype=float), gap.shares, digits)
        assert_equal(np.array(shown["clientShares"], dtype=float), gap.client_shares, digits)
    start = np.reshape(shown["start"], prediction.centralized.shape)
    assert_equal(shown["last"], prediction.trajectory(start, 4)[-1], max(scale, np.abs(start).max()))
    found = effects(replace(prediction, moments=moments))
    expected = [
        np.stack([way.mean_error, way.rms_difference], axis=1)
        for way in (found.shared, found.private, found.corrected)
    ]
    assert_equal(
        shown["effects"], expected, np.abs(moments.offset).max() + np.sqrt(np.abs(moments.covariance).max())
    )
    if strength == 0:
        assert tuple(shown["notes"]) == prediction.notes
    elif strength == 1:
        assert tuple(shown["notes"]) == correct(moments, penalty).notes
    return prediction.fully_active


def moments_of(given):
    """Moments of an example, or of another description of the explorer's data."""
    document = given["document"]
    clients = document["clients"]
    columns = {name: [client[name] for client in clients] for name in ("count", "mean", "covariance")}
    return Moments(
        **columns,
        clients=tuple(client["name"] for client in clients),
        targets=tuple(document["targets"]),
        client_weights=[client["weight"] for client in clients] if "weight" in clients[0] else None,
    )
