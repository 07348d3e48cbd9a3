"""The peers of `barycenter.py`, each with ladders of settings that make it work harder and harder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import numpy as np

Solve = Callable[[np.ndarray], np.ndarray]  # Grams (M, C, C) -> (C, C), or (K, M, C, C) -> (K, C, C)
Ladder = Iterable[Solve]
Peer = Callable[[int, bool], Iterable[Ladder]]  # size, whether there is a batch -> ladders


def load() -> tuple[dict[str, Peer], list[str]]:
    """The peers that import, and a sentence about each that does not."""
    peers: dict[str, Peer] = {}
    notes = []
    for name, install in {"POT": pot, "pyRiemann": pyriemann, "geomstats": geomstats, "OTT-JAX": ott}.items():
        try:
            peers.update(install())
        except Exception as reason:
            notes.append(f"{name} does not import: {reason}.")
            if "trapz" in str(reason):
                notes.append(f"{name} is run after all, with that name, which NumPy 2.4 removed, put back.")
                vars(np)["trapz"] = np.trapezoid
                peers.update(install())
    return peers, notes


def pot() -> dict[str, Peer]:
    import ot

    def ladder(method: str) -> Iterator[Solve]:
        for count in (8, 10, 12, 15, 20, 30, 45):
            yield each(
                lambda grams, count=count: ot.gaussian.bures_wasserstein_barycenter(
                    np.zeros(grams.shape[:2]), grams, method=method, num_iter=count, eps=0.0
                )[1]
            )

    # Its other method contracts three matrices at once, which takes minutes from C = 32 on.
    small, large = ("fixed_point", "gradient_descent"), ("fixed_point",)
    return {"POT": lambda size, batched: map(ladder, small if size <= 8 else large)}


def pyriemann() -> dict[str, Peer]:
    from pyriemann.geometry.mean import mean_wasserstein

    def ladder() -> Iterator[Solve]:
        for tolerance in 10.0 ** -np.arange(8, 15):
            yield each(lambda grams, tolerance=tolerance: mean_wasserstein(grams, tol=tolerance, maxiter=40))

    return {"pyRiemann": lambda size, batched: [ladder()]}


def geomstats() -> dict[str, Peer]:
    from geomstats.geometry.spd_matrices import SPDBuresWassersteinMetric, SPDMatrices
    from geomstats.learning.frechet_mean import FrechetMean

    logging.getLogger().setLevel(logging.ERROR)  # it warns of every mean that takes all its iterations

    def ladder(size: int, batched: bool) -> Iterator[Solve]:
        space = SPDMatrices(size, equip=False)
        space.equip_with_metric(SPDBuresWassersteinMetric)
        for count in (6, 8, 10, 12, 15, 20, 30):
            mean = FrechetMean(space, method="batch" if batched else "default").set(
                epsilon=0.0, max_iter=count
            )
            yield lambda grams, mean=mean: np.asarray(mean.fit(np.moveaxis(grams, -3, 0)).estimate_)

    return {"geomstats": lambda size, batched: [ladder(size, batched)]}


def ott() -> dict[str, Peer]:
    import jax
    from ott.geometry import costs

    jax.config.update("jax_enable_x64", True)

    def counted(count: int) -> dict[str, int]:
        # Its barycenter looks at the tolerance but once, after inner_iterations: they have to be counted out.
        return {"min_iterations": count, "max_iterations": count, "inner_iterations": count}

    def ladder(size: int, batched: bool, roots: dict[str, float] | None) -> Iterator[Solve]:
        for count in (8, 9, 10, 12, 14):

            def one(grams: jax.Array, count: int = count) -> jax.Array:
                weights = jax.numpy.full(grams.shape[0], 1 / grams.shape[0])
                return costs.Bures(size).covariance_fixpoint_iter(
                    covs=grams, weights=weights, tolerance=0.0, sqrtm_kw=roots, **counted(count)
                )[0]

            compiled = jax.jit(jax.vmap(one) if batched else one)
            yield lambda grams, compiled=compiled: compiled(grams).block_until_ready()

    def tuned(size: int, batched: bool) -> Iterator[Ladder]:
        for inner in (11, 14, 17) if size <= 8 else ():  # makes no difference to large matrices
            yield ladder(size, batched, {"threshold": 0.0, **counted(inner)})

    return {"OTT-JAX": lambda size, batched: [ladder(size, batched, None)], "OTT-JAX, tuned": tuned}


def each(solve: Solve) -> Solve:
    """A solver of one problem made to take a batch, one after the other."""
    return lambda grams: solve(grams) if grams.ndim == 3 else np.stack([solve(problem) for problem in grams])
