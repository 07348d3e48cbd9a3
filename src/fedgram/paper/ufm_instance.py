"""One fixed instance (Section 5.1, Appendix D.1, Figure 2): local training, rounds, gap and correction.

Everything is prescribed but how the seed's draw is used, on which only Adam in panel a depends: all else
takes the targets through their moments. Unstated in the paper, chosen here: 18 rounds in panel f, as in
panel c; solvers that stop at gradients of 1e-9.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import islice

import numpy as np
from scipy.optimize import minimize, root

from fedgram._util.arrays import Array
from fedgram.paper.columns import concatenated
from fedgram.paper.experiment import Experiment, Scale
from fedgram.paper.tables import Table
from fedgram.paper.ufm_instance_claims import measure
from fedgram.paper.ufm_instance_figure import draw
from fedgram.theory.correct import correct
from fedgram.theory.explain import TERMS, explain
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.predict import Prediction, predict
from fedgram.ufm.instances import FederatedInstance, fixed_instance, scale_covariances, scale_means
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.rounds import Local, exact, proximal, run_rounds, unregularised
from fedgram.ufm.solvers import adam_path, lbfgs, proximal_path

PATH_WEIGHTS = [10 ** (-1 - k / 2) for k in range(11)]
ROUND_WEIGHTS = [1e-1, 1e-2, 1e-3, 1e-4]
ROUNDS = 18


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts of the study, the same at both scales: together they take about a second."""
    return {
        "rounds": partial(federated_rounds, weights=ROUND_WEIGHTS, rounds=ROUNDS),
        "path": partial(proximal_paths, weights=PATH_WEIGHTS),
        "adam": partial(adam_snapshots, steps=[0, 20, 80, 240], rate=0.02),
        "samples": partial(sample_moments),
        "grams": partial(reference_grams),
        "gap": partial(gap_terms),
        "correction": partial(corrected_rounds, strengths=[0.0, 0.9, 0.99, 1.0], rounds=ROUNDS),
    }


@cache
def _fixed() -> tuple[FederatedInstance, Prediction]:
    instance = fixed_instance()
    return instance, predict(instance.moments, instance.penalty)


def sample_moments() -> Table:
    """How far the targets' own moments are from the prescribed ones: one row."""
    instance, _ = _fixed()
    prescribed, drawn = instance.moments, Moments.from_arrays(list(psd.transpose(instance.targets)))
    together = np.concatenate(list(instance.targets), axis=-1)
    pooled = np.cov(together, bias=True)
    return {
        "mean": np.array([np.abs(drawn.mean - prescribed.mean).max()]),
        "covariance": np.array([np.abs(drawn.covariance - prescribed.covariance).max()]),
        "pooled": np.array([np.abs(pooled - prescribed.pooled.covariance).max()]),
    }


def adam_snapshots(steps: list[int], rate: float) -> Table:
    """Client 1's Gram during joint training with Adam, panel a: one row per snapshot."""
    instance, prediction = _fixed()
    loss = Joint(Sample.of(instance.targets[0]), instance.penalty, instance.head)
    points = list(islice(adam_path(loss, loss.start(instance.head), rate), max(steps) + 1))
    grams = psd.gram(loss.head(np.array(points)[steps]))
    error = psd.relative_error(grams, prediction.grams[0])
    return {"steps": np.array(steps), **_entries(grams), "error": error}


def proximal_paths(weights: list[float]) -> Table:
    """Errors of returned heads for the broadcast W_0, panel b: one row per client and weight."""
    instance, prediction = _fixed()
    losses = [Profiled(each, instance.penalty, instance.head) for each in instance.moments.covariance]
    paths = [proximal_path(loss, weights) for loss in losses]
    heads = np.array([[solution.head for solution in path] for path in paths])
    selected = psd.closest_factor(instance.head, prediction.grams)
    return {
        "client": np.repeat(np.arange(1, len(paths) + 1), len(weights)),
        "weight": np.tile(weights, len(paths)),
        "gram_error": psd.relative_error(psd.gram(heads), prediction.grams[:, None]).ravel(),
        "selection_error": psd.relative_error(heads, selected[:, None]).ravel(),
        "gradient": np.array([solution.gradient_norm for path in paths for solution in path]),
    }


def federated_rounds(weights: list[float], rounds: int) -> Table:
    """Shared Grams of every procedure, panels c and d: one row per procedure and round."""
    instance, prediction = _fixed()
    clients = [Profiled(each, instance.penalty, instance.head) for each in instance.moments.covariance]
    numerical = {weight: proximal(clients, prediction.grams, weight) for weight in weights}
    return concatenated(
        [
            _rounds("exact", 0.0, exact(prediction.grams), rounds),
            _rounds("L-BFGS", 0.0, unregularised(clients, lbfgs), rounds),
            *(_rounds("proximal", weight, local, rounds) for weight, local in numerical.items()),
        ]
    )


def _rounds(procedure: str, weight: float, local: Local, rounds: int) -> Table:
    """Rounds 0..T of one procedure, with how many solves each took and their largest gradient norm."""
    instance, prediction = _fixed()
    run = run_rounds(instance.head, local, instance.moments.client_weights, rounds)
    loss = Profiled(instance.moments.covariance, instance.penalty, run.heads[:-1, None], weight)
    gradient = np.linalg.norm(loss.gradient(loss.start(run.returned)), axis=-1)
    solves = 0 if procedure == "exact" else gradient.shape[-1]
    return {
        "procedure": np.full(rounds + 1, procedure),
        "weight": np.full(rounds + 1, weight),
        "round": np.arange(rounds + 1),
        **_entries(run.grams),
        "error": psd.relative_error(run.grams, prediction.barycenter.gram),
        "solves": np.array([0] + [solves] * rounds),
        "gradient": np.concatenate([[0.0], gradient.max(axis=-1)]),
    }


def reference_grams() -> Table:
    """The clients' optimal Grams, G_⋆ twice, by recursion and by minimisation, and G_cen: one row each."""
    instance, prediction = _fixed()
    minimiser = variational_barycenter(prediction.grams, instance.moments.client_weights)
    grams = {f"client {m}": gram for m, gram in enumerate(prediction.grams, start=1)} | {
        "limit": prediction.barycenter.gram,
        "minimiser": minimiser,
        "centralized": prediction.centralized,
    }
    return {"name": np.array(list(grams)), **_entries(np.array(list(grams.values())))}


def variational_barycenter(grams: Array, client_weights: Array) -> Array:
    """argmin Σ p_m d²(L Lᵀ, G_m) over lower-triangular L, eq. (10), for grams (M, 2, 2) -> (2, 2).

    Shares nothing with `barycenter`: a 2 x 2 matrix has tr X^(1/2) = (tr X + 2 √det X)^(1/2), which gives
    d²(G, G_m) = tr G + tr G_m - 2 r_m with r_m² = tr G_m G + 2 √(det G_m det G).
    """
    root_determinants = np.sqrt(np.linalg.det(grams))

    def factor(point: Array) -> Array:
        return np.array([[point[0], 0.0], [point[1], point[2]]])

    def fidelity(point: Array) -> Array:
        inner = np.einsum("ij,mik,kj->m", factor(point), grams, factor(point))
        return np.sqrt(inner + 2 * root_determinants * point[0] * point[2])

    def value(point: Array) -> float:
        return float(client_weights @ (point @ point + psd.trace(grams) - 2 * fidelity(point)))

    def gradient(point: Array) -> Array:
        cofactor = np.diag([point[2], point[0]])
        pull = grams @ factor(point) + root_determinants[:, None, None] * cofactor
        slope = factor(point) - np.einsum("m,mij->ij", client_weights / fidelity(point), pull)
        return 2 * slope[np.tril_indices(2)]

    found = minimize(value, np.array([1.0, 0.0, 1.0]), jac=gradient, method="BFGS")
    # Values tell minimisers apart to √eps only; the zero of the gradient beside this one has all digits.
    return psd.gram(factor(root(gradient, found.x, tol=1e-15).x))


def gap_terms() -> Table:
    """The three terms with moments as they are, and made equal in three ways, panel e: one row per case."""
    moments = _fixed()[0].moments
    cases = {
        "original": moments,
        "equal means": scale_means(moments, 0.0),
        "equal covariances": scale_covariances(moments, 0.0),
        "both equal": scale_means(scale_covariances(moments, 0.0), 0.0),
    }
    return concatenated([_gap_row(case, modified) for case, modified in cases.items()])


def _gap_row(case: str, moments: Moments) -> Table:
    prediction = predict(moments, _fixed()[0].penalty)
    gap, star = explain(prediction), prediction.barycenter.gram
    variance = moments.client_weights @ psd.distance(star, prediction.grams) ** 2  # eq. (12)
    return {
        "case": np.array([case]),
        **{term: trace[None] for term, trace in zip(TERMS, gap.traces, strict=True)},
        "relative": gap.relative[None],
        "eigenvalue": gap.smallest_eigenvalue.min(keepdims=True) / gap.scale,
        "sum_residual": psd.frobenius(prediction.centralized - star - gap.total)[None],
        "variance_residual": np.abs(gap.traces[2] - variance)[None],
    }


def corrected_rounds(strengths: list[float], rounds: int) -> Table:
    """Error to G_cen under γ C_m with exact selection, panel f: one row per γ and round."""
    instance, _ = _fixed()
    tables = []
    for strength in strengths:
        correction = correct(instance.moments, instance.penalty, strength)
        run = run_rounds(instance.head, exact(correction.grams), instance.moments.client_weights, rounds)
        error = psd.relative_error(run.grams, correction.centralized)
        tables.append(
            {"strength": np.full(len(error), strength), "round": np.arange(len(error)), "error": error}
        )
    return concatenated(tables)


def _entries(grams: Array) -> Table:
    """Columns of the entries of symmetric matrices (N, 2, 2); `ufm_instance_claims.gram_at` reads them."""
    return {"g11": grams[:, 0, 0], "g12": grams[:, 0, 1], "g22": grams[:, 1, 1]}


EXPERIMENT = Experiment(
    name="ufm-instance",
    title="One fixed instance",
    where="Section 5.1, Appendix D.1, Figure 2",
    cost="about 5 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
