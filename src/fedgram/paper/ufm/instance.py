"""One fixed instance (Section 5.1, Appendix D.1, Figure 2).

The paper prescribes the moments, on which all but panel a depends; Adam in panel a depends on our draw.
Our choices where the paper is silent: 18 rounds in panel f, as in panel c; solvers stop at gradients of 1e-9.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.display.plotting import BLUE, GREEN, GREY, INK, ORANGE, RED, TERM_COLORS, ellipse
from fedgram.paper.claims import ROUNDING
from fedgram.paper.plots import TERM_NAMES, draw_guide, make_panels, shades
from fedgram.paper.storage import Table
from fedgram.paper.ufm.experiment import Experiment, Found, Results, Scale, largest
from fedgram.paper.ufm.variational_barycenter import variational_barycenter
from fedgram.theory.correct import correct
from fedgram.theory.explain import TERMS, explain
from fedgram.theory.geometry import psd
from fedgram.theory.moments import Moments
from fedgram.theory.predict import Prediction, predict
from fedgram.ufm.instances import FederatedInstance, fixed_instance, scale_covariances, scale_means
from fedgram.ufm.joint import Joint, Sample
from fedgram.ufm.profiled import Profiled
from fedgram.ufm.rounds import Local, exact, minimize_alone, proximal, run_rounds
from fedgram.ufm.solvers import adam_path, lbfgs, proximal_path

PATH_WEIGHTS = [10 ** (-1 - k / 2) for k in range(11)]
ROUND_WEIGHTS = [1e-1, 1e-2, 1e-3, 1e-4]
ROUNDS = 18
SHOWN_ROUNDS = (0, 1, 2, 18)
FLOOR = 1e-14  # smaller errors are drawn here
REACH = 1.75  # half width of both ellipse panels, so that they share a scale


def parts(scale: Scale) -> dict[str, partial[Table]]:
    """Parts, the same at both scales: together they take about a second."""
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
    """Difference between the moments of the drawn targets and the prescribed ones: one row."""
    instance, _ = _fixed()
    prescribed, drawn = instance.moments, Moments.from_arrays(list(instance.targets.mT))
    together = np.concatenate(list(instance.targets), axis=-1)
    pooled = np.cov(together, bias=True)
    return Table.broadcast(
        (1,),
        mean=largest(drawn.mean - prescribed.mean),
        covariance=largest(drawn.covariance - prescribed.covariance),
        pooled=largest(pooled - prescribed.pooled.covariance),
    )


def adam_snapshots(steps: list[int], rate: float) -> Table:
    """Gram of client 1 during joint training with Adam, panel a: one row per snapshot."""
    instance, prediction = _fixed()
    loss = Joint(Sample.from_targets(instance.targets[0]), instance.penalty, instance.head)
    points = list(islice(adam_path(loss, loss.start(instance.head), rate), max(steps) + 1))
    grams = psd.gram(loss.head(np.array(points)[steps]))
    error = psd.relative_error(grams, prediction.grams[0])
    return Table(steps=np.array(steps), **_entries(grams), error=error)


def proximal_paths(weights: list[float]) -> Table:
    """Errors of returned heads for the broadcast W_0, panel b: one row per client and weight."""
    instance, prediction = _fixed()
    losses = [Profiled(each, instance.penalty, instance.head) for each in instance.moments.covariance]
    paths = [proximal_path(loss, weights) for loss in losses]
    heads = np.array([[solution.head for solution in path] for path in paths])
    selected = psd.closest_factor(instance.head, prediction.grams)
    return Table.broadcast(
        heads.shape[:2],
        client=np.arange(1, len(paths) + 1)[:, None],
        weight=np.array(weights),
        gram_error=psd.relative_error(psd.gram(heads), prediction.grams[:, None]),
        selection_error=psd.relative_error(heads, selected[:, None]),
        gradient=np.array([[solution.gradient_norm for solution in path] for path in paths]),
    )


def federated_rounds(weights: list[float], rounds: int) -> Table:
    """Shared Grams of every procedure, panels c and d: one row per procedure and round."""
    instance, prediction = _fixed()
    clients = [Profiled(each, instance.penalty, instance.head) for each in instance.moments.covariance]
    numerical = {weight: proximal(clients, prediction.grams, weight) for weight in weights}
    return Table.concatenate(
        [
            _rounds("exact", 0.0, exact(prediction.grams), rounds),
            _rounds("L-BFGS", 0.0, minimize_alone(clients, lbfgs), rounds),
            *(_rounds("proximal", weight, local, rounds) for weight, local in numerical.items()),
        ]
    )


def _rounds(procedure: str, weight: float, local: Local, rounds: int) -> Table:
    """Rounds 0..T of one procedure, with the number of solves and their largest gradient norm."""
    instance, prediction = _fixed()
    run = run_rounds(instance.head, local, instance.moments.client_weights, rounds)
    loss = Profiled(instance.moments.covariance, instance.penalty, run.heads[:-1, None], weight)
    gradient = np.linalg.norm(loss.gradient(loss.start(run.returned)), axis=-1)
    solves = 0 if procedure == "exact" else gradient.shape[-1]
    return Table.broadcast(
        (rounds + 1,),
        procedure=procedure,
        weight=weight,
        round=np.arange(rounds + 1),
        **_entries(run.grams),
        error=psd.relative_error(run.grams, prediction.barycenter.gram),
        solves=np.array([0] + [solves] * rounds),
        gradient=np.concatenate([[0.0], gradient.max(axis=-1)]),
    )


def reference_grams() -> Table:
    """Optimal Grams of the clients, G_⋆ by recursion and by minimization, and G_cen: one row each."""
    instance, prediction = _fixed()
    minimizer = variational_barycenter(prediction.grams, instance.moments.client_weights)
    grams = {f"client {m}": gram for m, gram in enumerate(prediction.grams, start=1)} | {
        "limit": prediction.barycenter.gram,
        "minimizer": minimizer,
        "centralized": prediction.centralized,
    }
    return Table(name=np.array(list(grams)), **_entries(np.array(list(grams.values()))))


def gap_terms() -> Table:
    """The three terms with original moments and with equal ones, panel e: one row per case."""
    moments = _fixed()[0].moments
    cases = {
        "original": moments,
        "equal means": scale_means(moments, 0.0),
        "equal covariances": scale_covariances(moments, 0.0),
        "both equal": scale_means(scale_covariances(moments, 0.0), 0.0),
    }
    return Table.concatenate([_gap_row(case, modified) for case, modified in cases.items()])


def _gap_row(case: str, moments: Moments) -> Table:
    prediction = predict(moments, _fixed()[0].penalty)
    gap, star = explain(prediction), prediction.barycenter.gram
    variance = moments.client_weights @ psd.distance(star, prediction.grams) ** 2  # eq. (12)
    return Table.broadcast(
        (1,),
        case=case,
        **dict(zip(TERMS, gap.traces, strict=True)),
        relative=gap.relative,
        eigenvalue=gap.smallest_eigenvalue.min() / gap.scale,
        sum_residual=psd.frobenius(prediction.centralized - star - gap.total),
        variance_residual=np.abs(gap.traces[2] - variance),
    )


def corrected_rounds(strengths: list[float], rounds: int) -> Table:
    """Error to G_cen under γ C_m with exact selection, panel f: one row per γ and round."""
    instance, _ = _fixed()
    tables = []
    for strength in strengths:
        correction = correct(instance.moments, instance.penalty, strength)
        run = run_rounds(instance.head, exact(correction.grams), instance.moments.client_weights, rounds)
        error = psd.relative_error(run.grams, correction.centralized)
        tables.append(
            Table.broadcast(error.shape, strength=strength, round=np.arange(len(error)), error=error)
        )
    return Table.concatenate(tables)


def _entries(grams: Array) -> dict[str, Array]:
    """Columns of the entries of symmetric matrices (N, 2, 2); `gram_at` reads them."""
    return {"g11": grams[:, 0, 0], "g12": grams[:, 0, 1], "g22": grams[:, 1, 1]}


def measure(results: Results) -> Found:
    """Measure the claims about the fixed instance."""
    samples, grams, rounds = results["samples"], results["grams"], results["rounds"]
    limit, minimizer = gram_named(grams, "limit"), gram_named(grams, "minimizer")
    solved = rounds["gradient"][rounds["solves"] > 0]
    return {
        "instance-moments": max(samples["mean"][0], samples["covariance"][0]),
        "instance-pooled": samples["pooled"][0],
        "instance-adam": _falls(results["adam"]["error"]),
        "instance-variational": psd.relative_error(minimizer, limit),
        **_measure_selection(results["path"]),
        **_measure_endpoints(rounds, gram_named(grams, "centralized")),
        "instance-gradient": max(results["path"]["gradient"].max(), solved.max()),
        **_measure_gap(results["gap"]),
        **_measure_correction(results["correction"]),
    }


def _measure_selection(path: Table) -> Found:
    _, gram = worst_client(path, "gram_error")
    _, head = worst_client(path, "selection_error")
    return {
        "instance-gram-error": gram[-1],
        "instance-selection-error": head[-1],
        "instance-errors-fall": _falls(gram) and _falls(head),
    }


def _measure_endpoints(rounds: Table, centralized: Array) -> Found:
    large, small, free, exact = (
        rows_of(rounds, *procedure)["error"]
        for procedure in (("proximal", 1e-1), ("proximal", 1e-3), ("L-BFGS",), ("exact",))
    )
    last = gram_at(rows_of(rounds, "proximal", 1e-3), -1)
    return {
        "instance-end-rho-1e-1": large[-1],
        "instance-end-rho-1e-3": small[-1],
        "instance-end-none": free[-1],
        "instance-end-exact": exact[16:].max(),
        "instance-proximal-closer": small[-1] < free[-1],
        "instance-gap-remains": psd.relative_error(last, centralized),
    }


def _measure_gap(cases: Table) -> Found:
    mean, covariance, averaging = (cases[term] for term in ("mean", "covariance", "averaging"))
    original, means, covariances, both = (
        list(cases["case"]).index(case)
        for case in ("original", "equal means", "equal covariances", "both equal")
    )
    moved = [term[means] - term[original] for term in (covariance, averaging)]
    return {
        "instance-trace-mean": mean[original],
        "instance-trace-covariance": covariance[original],
        "instance-trace-averaging": averaging[original],
        "instance-equal-means": largest([mean[means], *moved]),
        "instance-equal-covariances": largest([covariance[covariances], averaging[covariances]]),
        "instance-equal-both": cases["relative"][both],
        "instance-three-terms": largest(cases["sum_residual"]),
        "instance-variance": largest(cases["variance_residual"]),
        "instance-semidefinite": (cases["eigenvalue"] >= -ROUNDING).all(),
    }


def _measure_correction(rounds: Table) -> Found:
    """Error to G_cen after one round for each strength, and its limit without correction."""
    strengths = {"0.9": 0.9, "0.99": 0.99, "full": 1.0}
    once = {name: rounds.select(strength=each, round=1)["error"][0] for name, each in strengths.items()}
    return {
        **{f"instance-correction-{name}": error for name, error in once.items()},
        "instance-gap": rounds.select(strength=0.0)["error"][-1],
    }


def _falls(errors: Array) -> bool:
    return bool((np.diff(errors) < 0).all())


def gram_at(table: Table, row: int) -> Array:
    """Gram matrix (2, 2) of a row with the columns g11, g12 and g22."""
    return np.array([[table["g11"][row], table["g12"][row]], [table["g12"][row], table["g22"][row]]])


def gram_named(table: Table, name: str) -> Array:
    """Gram matrix (2, 2) by its name in the part `grams`."""
    return gram_at(table, list(table["name"]).index(name))


def rows_of(rounds: Table, procedure: str, weight: float = 0.0) -> Table:
    """Rounds 0..T of one procedure in the part `rounds`."""
    return rounds.select(procedure=procedure, weight=weight)


def worst_client(path: Table, name: str) -> tuple[Array, Array]:
    """Weights ρ, largest first, and the maximum over clients of a column of the part `path`."""
    weights, errors = path.samples_by("weight", name)
    return weights[::-1], errors.max(axis=1)[::-1]


def draw(results: Results) -> Any:
    """Draw all six panels."""
    figure, axes = make_panels(2, 3, (10.5, 6.6))
    _draw_local_training(axes[0], results["adam"], results["grams"])
    _draw_selection(axes[1], results["path"])
    _draw_rounds(axes[2], results["rounds"])
    _draw_shared_grams(axes[3], rows_of(results["rounds"], "proximal", 1e-3), results["grams"])
    _draw_terms(axes[4], results["gap"])
    _draw_correction(axes[5], results["correction"])
    return figure


def _draw_local_training(axis: Any, adam: Table, grams: Table) -> None:
    axis.plot(*ellipse(gram_named(grams, "client 1")), color=GREEN, lw=1.8, label="$G_1$")
    trained = [gram_at(adam, row) for row in range(len(adam["steps"]))]
    _draw_dots(axis, trained, [f"$E={steps}$" for steps in adam["steps"]])
    axis.set_title("(a) Adam at client 1, no penalty")


def _draw_selection(axis: Any, path: Table) -> None:
    for name, marker, color, label in (
        ("gram_error", "o", BLUE, "$e_G$"),
        ("selection_error", "s", ORANGE, r"$e_\Pi$"),
    ):
        weights, error = worst_client(path, name)
        axis.plot(weights, error, marker=marker, color=color, label=label)
    draw_guide(axis, weights, (weights[-1], 1e-6), 1, label="slope one")
    axis.set(xscale="log", yscale="log", xlabel=r"$\rho$", ylabel="relative error, worst client")
    axis.set_title("(b) selection as the penalty vanishes")
    axis.legend(loc="upper left")


def _draw_rounds(axis: Any, rounds: Table) -> None:
    curves = (
        ("L-BFGS", 0.0, RED, "s-", r"L-BFGS, $\rho=0$"),
        ("proximal", 1e-1, ORANGE, "o-", r"$\rho=10^{-1}$"),
        ("proximal", 1e-3, BLUE, "o-", r"$\rho=10^{-3}$"),
        ("exact", 0.0, INK, "--", "exact selection"),
    )
    for procedure, weight, color, line, label in curves:
        chosen = rows_of(rounds, procedure, weight)
        _draw_curve(axis, chosen["round"], chosen["error"], line, color=color, label=label)
    _style_rounds(axis, r"relative error to $G_{\bigstar}$", r"(c) distance to $G_{\bigstar}$")
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 0.72))


def _draw_shared_grams(axis: Any, rounds: Table, grams: Table) -> None:
    axis.plot(*ellipse(gram_named(grams, "limit")), color=GREEN, lw=1.8, label=r"$G_{\bigstar}$")
    axis.plot(*ellipse(gram_named(grams, "centralized")), color=INK, lw=1.4, ls="--", label=r"$G_{cen}$")
    _draw_dots(axis, [gram_at(rounds, t) for t in SHOWN_ROUNDS], [f"$t={t}$" for t in SHOWN_ROUNDS])
    axis.set_title(r"(d) shared Gram, $\rho=10^{-3}$")


def _draw_dots(axis: Any, trained: list[Array], labels: list[str]) -> None:
    """Draw trained Grams as dots, later ones darker, with the legend beside the ellipses."""
    colors = shades("plasma_r", len(trained))
    for gram, color, label in zip(trained, colors, labels, strict=True):
        axis.plot(*ellipse(gram, 49), ".", ms=4, color=color, label=label)
    axis.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xlabel="target 1", ylabel="target 2")
    axis.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)


def _draw_terms(axis: Any, cases: Table) -> None:
    """Stack the traces of the three terms in each of the four cases."""
    places, base = np.arange(len(cases["case"])), np.zeros(len(cases["case"]))
    for term, color, name in zip(TERMS, TERM_COLORS, TERM_NAMES, strict=True):
        trace = np.maximum(cases[term], 0.0)
        axis.bar(places, trace, 0.6, bottom=base, color=color, label=f"tr {name}")
        for place in places[trace > 0.01]:
            middle = base[place] + trace[place] / 2
            axis.text(place, middle, f"{trace[place]:.2f}", ha="center", va="center", color="w", fontsize=7)
        base = base + trace
    for place in places[base < 0.01]:
        axis.text(place, 0.02, "0", ha="center", va="bottom", color=GREY)
    axis.set_xticks(places, [case.replace(" ", "\n") for case in cases["case"]])
    axis.set(ylabel="trace", title=r"(e) $G_{cen}-G_{\bigstar}$ by its causes")
    axis.legend(loc="upper right")


def _draw_correction(axis: Any, rounds: Table) -> None:
    strengths = np.unique(rounds["strength"])
    for strength, color in zip(strengths, (GREY, ORANGE, BLUE, GREEN), strict=True):
        chosen, label = rounds.select(strength=strength), rf"$\gamma={strength:g}$"
        _draw_curve(axis, chosen["round"], chosen["error"], "o-", color=color, label=label)
    _style_rounds(axis, r"relative error to $G_{cen}$", "(f) moment correction, exact selection")
    axis.legend(loc="center right")


def _draw_curve(axis: Any, rounds: Array, error: Array, line: str, **keywords: Any) -> None:
    """Draw errors over rounds; those below the floor stay on it and are not clipped."""
    axis.plot(rounds, np.maximum(error, FLOOR), line, clip_on=False, **keywords)


def _style_rounds(axis: Any, label: str, title: str) -> None:
    axis.set(yscale="log", ylim=(FLOOR, 4), xlabel="round", ylabel=label, title=title)
    axis.set_xticks(range(0, 19, 3))


EXPERIMENT = Experiment(
    name="ufm-instance",
    title="One fixed instance",
    where="Section 5.1, Appendix D.1, Figure 2",
    cost="about 5 s",
    parts=parts,
    measure=measure,
    draw=draw,
)
