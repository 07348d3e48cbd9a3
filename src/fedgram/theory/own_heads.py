"""Ridge heads on the features of networks that sites train alone.

A site has few rows, so the last layer that it trains alone fits their noise. With u the output of its own
backbone, the site solves

    min Σ‖y - W u - b‖² + κ ‖W‖²,   κ = ratio · Σ_d s_d²,

where s_d is the deviation of feature d. This is optimal if the features are uncorrelated, the weights are
drawn independently with equal variance, and `ratio` is the variance of the noise over that of the signal.
Equal penalties for all features give rare features, which differ in new rows, little weight.

Without other sites, each chooses its ratio on its own validation rows. In a blended run, the validation rows
of all sites choose one ratio, and a site sends one error per ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.moment_head import FeatureSums, LinearHead

# Searched ratios of the variances of noise and signal, a decade apart.
NOISE_RATIOS: tuple[float, ...] = (1e3, 1e2, 10.0, 1.0, 0.1, 1e-2, 1e-3, 1e-4)

# Best single ratio on 44 problems of benchmarks/site_problems.py (seed 3, four fifths of the rows): 0.80 of
# the error of the trained layer.
USUAL_INDEX = NOISE_RATIOS.index(0.1)

# Validation rows whose error a site's ratio must save per decade from the usual one. On the same problems the
# error is 0.88 of the trained layer's without this rule (1.55 on the worst), and 0.81 with it (1.23).
ROWS_PER_DECADE = 4.0


@dataclass(frozen=True, eq=False)
class OwnHeads:
    """Heads of M sites (M, C, D), each on features of the site's own network.

    ratio (M,); unseen: heads from training rows alone, to be judged on validation rows.
    """

    ratio: Array
    sites: LinearHead
    unseen: LinearHead


def solve_for_ratios(sums: FeatureSums) -> LinearHead:
    """Solve the heads of M sites for every ratio: (ratios, M, C, D)."""
    values, basis = np.linalg.eigh(sums.feature_scatter)
    values = np.maximum(values, 0.0)  # rounding
    variance = values.sum(axis=-1) / sums.count
    penalized = values + (np.array(NOISE_RATIOS)[:, None] * variance)[..., None]
    gains = np.divide(1.0, penalized, out=np.zeros_like(penalized), where=penalized > 0)
    weight = (basis @ (gains[..., None] * (basis.mT @ sums.cross_scatter))).mT
    return LinearHead(weight, sums.fit_bias(weight))


def ratio_errors(heads: LinearHead, validation: FeatureSums) -> Array:
    """Squared errors (ratios, M) of each site's validation rows, summed over targets."""
    return np.asarray(validation.squared_error(heads).sum(axis=-1))


def choose_common_ratio(errors: Array) -> int:
    """Return the index of the ratio with the least error over all sites; errors (ratios, M)."""
    return int(errors.sum(axis=1).argmin())


def choose_own_ratios(errors: Array, rows: Array) -> Array:
    """Return the index of each site's ratio, (M,), from errors (ratios, M) of its validation rows (M,)."""
    decades = np.abs(np.arange(len(NOISE_RATIOS)) - USUAL_INDEX)
    row_error = errors.min(axis=0) / np.maximum(rows, 1)
    chosen = (errors + ROWS_PER_DECADE * decades[:, None] * row_error).argmin(axis=0)
    return np.where(rows > 0, chosen, USUAL_INDEX)


def fit_own_heads(training: FeatureSums, validation: FeatureSums, *, common: bool) -> OwnHeads:
    """Fit the heads of M sites; validation rows choose their ratios.

    Parameters
    ----------
    training, validation : FeatureSums with leading axis M
        Sums over each site's training rows and over its validation rows, of features of its own network.
    common : bool
        Whether all sites use the ratio that is best for all; else each chooses its own.

    Returns
    -------
    OwnHeads
        Fitted on training and validation rows; `unseen` on training rows alone.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> u = rng.standard_normal((2, 30, 3))
    >>> y = u[..., :1] + 5.0
    >>> training, validation = (
    ...     FeatureSums.stack([FeatureSums.from_rows(*site) for site in zip(u[:, part], y[:, part])])
    ...     for part in (slice(20), slice(20, 30))
    ... )
    >>> heads = fit_own_heads(training, validation, common=True)
    >>> heads.ratio, heads.sites.bias.round(3).tolist()
    (array([0.0001, 0.0001]), [[5.0], [5.0]])
    """
    unseen = solve_for_ratios(training)
    errors = ratio_errors(unseen, validation)
    sites = np.arange(len(training.count))
    chosen = (
        np.full(len(sites), choose_common_ratio(errors))
        if common
        else choose_own_ratios(errors, validation.count)
    )
    final = solve_for_ratios(training + validation)
    return OwnHeads(np.array(NOISE_RATIOS)[chosen], final[chosen, sites], unseen[chosen, sites])
