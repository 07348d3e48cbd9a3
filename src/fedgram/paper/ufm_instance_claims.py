"""Numbers of the fixed instance for the claims about it, read from the tables of `ufm_instance`."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.paper.claims import ROUNDING, Measured
from fedgram.paper.columns import largest
from fedgram.paper.experiment import Results
from fedgram.paper.tables import Table
from fedgram.theory.geometry import psd


def gram_at(table: Table, row: int) -> Array:
    """The Gram matrix (2, 2) of a row with the columns g11, g12 and g22."""
    return np.array([[table["g11"][row], table["g12"][row]], [table["g12"][row], table["g22"][row]]])


def gram_called(table: Table, name: str) -> Array:
    """The Gram matrix (2, 2) of that name in the part `grams`."""
    return gram_at(table, list(table["name"]).index(name))


def rows_of(rounds: Table, procedure: str, weight: float = 0.0) -> Table:
    """Rounds 0..T of one procedure in the part `rounds`."""
    chosen = (rounds["procedure"] == procedure) & (rounds["weight"] == weight)
    return {name: column[chosen] for name, column in rounds.items()}


def worst_client(path: Table, name: str) -> tuple[Array, Array]:
    """Weights ρ, largest first, and the largest over the clients of a column of the part `path`."""
    weights = np.unique(path["weight"])[::-1]
    return weights, np.array([path[name][path["weight"] == weight].max() for weight in weights])


def measure(results: Results) -> dict[str, Measured]:
    """Numbers for the claims about the fixed instance."""
    samples, grams = results["samples"], results["grams"]
    limit, minimiser = gram_called(grams, "limit"), gram_called(grams, "minimiser")
    return {
        "instance-moments": Measured(float(max(samples["mean"][0], samples["covariance"][0]))),
        "instance-pooled": Measured(float(samples["pooled"][0])),
        "instance-adam": Measured(_falls(results["adam"]["error"])),
        "instance-variational": Measured(float(psd.relative_error(minimiser, limit))),
        **_selection(results["path"]),
        **_endpoints(results["rounds"]),
        **_solves(results["path"], results["rounds"]),
        **_gap(results["gap"]),
        **_correction(results["correction"]),
    }


def _selection(path: Table) -> dict[str, Measured]:
    _, gram = worst_client(path, "gram_error")
    _, head = worst_client(path, "selection_error")
    return {
        "instance-gram-error": Measured(float(gram[-1])),
        "instance-selection-error": Measured(float(head[-1])),
        "instance-errors-fall": Measured(_falls(gram) and _falls(head)),
    }


def _endpoints(rounds: Table) -> dict[str, Measured]:
    large, small, free, exact = (
        rows_of(rounds, *procedure)["error"]
        for procedure in (("proximal", 1e-1), ("proximal", 1e-3), ("L-BFGS",), ("exact",))
    )
    return {
        "instance-end-rho-1e-1": Measured(float(large[-1])),
        "instance-end-rho-1e-3": Measured(float(small[-1])),
        "instance-end-none": Measured(float(free[-1])),
        "instance-end-exact": Measured(float(exact[16:].max())),
        "instance-proximal-closer": Measured(bool(small[-1] < free[-1])),
    }


def _solves(path: Table, rounds: Table) -> dict[str, Measured]:
    largest = max(path["gradient"].max(), rounds["gradient"][rounds["solves"] > 0].max())
    return {
        "instance-solves": Measured(len(path["gradient"]) + int(rounds["solves"].sum())),
        "instance-gradient": Measured(float(largest)),
    }


def _gap(cases: Table) -> dict[str, Measured]:
    mean, covariance, averaging = (cases[term] for term in ("mean", "covariance", "averaging"))
    original, means, covariances, both = (
        list(cases["case"]).index(case)
        for case in ("original", "equal means", "equal covariances", "both equal")
    )
    moved = [term[means] - term[original] for term in (covariance, averaging)]
    return {
        "instance-trace-mean": Measured(float(mean[original])),
        "instance-trace-covariance": Measured(float(covariance[original])),
        "instance-trace-averaging": Measured(float(averaging[original])),
        "instance-equal-means": Measured(largest([mean[means], *moved])),
        "instance-equal-covariances": Measured(largest([covariance[covariances], averaging[covariances]])),
        "instance-equal-both": Measured(float(cases["relative"][both])),
        "instance-three-terms": Measured(largest(cases["sum_residual"])),
        "instance-variance": Measured(largest(cases["variance_residual"])),
        "instance-semidefinite": Measured(bool((cases["eigenvalue"] >= -ROUNDING).all())),
    }


def _correction(rounds: Table) -> dict[str, Measured]:
    """Error to G_cen after one round for each strength, and where it settles without correction."""
    once = {
        strength: float(rounds["error"][(rounds["strength"] == strength) & (rounds["round"] == 1)][0])
        for strength in (0.9, 0.99, 1.0)
    }
    return {
        "instance-correction-0.9": Measured(once[0.9]),
        "instance-correction-0.99": Measured(once[0.99]),
        "instance-correction-full": Measured(once[1.0]),
        "instance-gap": Measured(float(rounds["error"][rounds["strength"] == 0.0][-1])),
    }


def _falls(errors: Array) -> bool:
    return bool((np.diff(errors) < 0).all())
