"""Bias and features that minimize eq. (1) at a fixed head, by linear least squares."""

from __future__ import annotations

import numpy as np

from fedgram._util.arrays import Array
from fedgram.theory.penalty import Penalty


def fit_bias_and_features(
    head: Array, targets: Array, row_weights: Array, penalty: Penalty
) -> tuple[Array, Array]:
    """argmin over b and H of Σ_n w_n (‖W h_n + b - y_n‖² + λ_H ‖h_n‖²)/2.

    head (C, P), targets (C, N), row_weights (N,) -> b (C,), H (P, N). Weights of 1/N_m give eq. (1), and
    p_m/N_m in the rows of all clients eq. (2). LAPACK solves for all unknowns at once, independent of
    `conditional_solution`.
    """
    (count, width), rows, roots = head.shape, targets.shape[1], np.sqrt(row_weights)
    errors = np.hstack([np.kron(np.diag(roots), head), np.kron(roots[:, None], np.eye(count))])
    sizes = np.kron(np.diag(roots), np.sqrt(penalty.features) * np.eye(width))
    system = np.vstack([errors, np.pad(sizes, ((0, 0), (0, count)))])
    wanted = np.pad((roots * targets).T.ravel(), (0, rows * width))
    found = np.linalg.lstsq(system, wanted)[0]
    return found[rows * width :], found[: rows * width].reshape(rows, width).T
