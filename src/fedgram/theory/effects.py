"""Effects of federated training on predictions, in the targets' units.

At the limit of federated averaging, client m has the head Ŵ_m = Π_m(W_⋆) and features Ŵ_mᵀ A_m⁻¹ (y - μ_m),
optimal for its rows, with A = W Wᵀ + λ_H I. It predicts with the shared head W_⋆ and a bias b:

    federated    b + K_m (y - μ_m)      K_m = W_⋆ Ŵ_mᵀ A_m⁻¹, b = μ_g (shared) or μ_m (private)
    centralized  μ_g + K_cen (y - μ_g)  K_cen = G_cen A_cen⁻¹ = I - λ_H A_cen⁻¹

These are eqs. (B3) and (B4). The correction gives every client the head Ŵ_m = W_⋆ with W_⋆ W_⋆ᵀ = G_cen. The
feature offset adds K_cen d_m, d_m = μ_m - μ_g. The two together predict like centralized training
(Appendix C.3). A client that fits its features to the shared head again has the slope G_⋆ A_⋆⁻¹ instead of
K_m; its mean error is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgram._util.arrays import Array
from fedgram._util.display_methods import DisplayMethods
from fedgram._util.errors import check_type
from fedgram.theory.geometry import psd
from fedgram.theory.predict import Prediction
from fedgram.theory.validation import check_scale


@dataclass(frozen=True, eq=False)
class Effect:
    """Errors of one way to predict, per client and target.

    Parameters
    ----------
    mean_error
        Mean of prediction - target over a client's rows, (..., M, C); positive: too high.
    rms_difference
        Root mean square of the difference from centralized predictions over a client's rows, (..., M, C).

    Examples
    --------
    >>> from fedgram.theory.effects import Effect
    >>> Effect(mean_error=[[0.5]], rms_difference=[[0.5]]).mean_error
    [[0.5]]
    """

    mean_error: Array
    rms_difference: Array

    def __repr__(self) -> str:
        error, difference = (np.abs(each).max() for each in (self.mean_error, self.rms_difference))
        return f"Effect(mean errors up to {error:.3g}, RMS differences up to {difference:.3g})"


@dataclass(frozen=True, eq=False)
class Effects(DisplayMethods):
    """Effects of federated training at its limit; all values are in the targets' units.

    Parameters
    ----------
    shared
        With the shared bias μ_g, as plain federated averaging ends.
    private
        With each client's own bias μ_m.
    corrected
        With the moment correction, the shared bias and the feature offset; equal to centralized training.
    prediction
        The prediction that the effects belong to.
    scale
        Unit of each target in the prediction, (C,).

    Examples
    --------
    >>> from fedgram import Moments, Penalty, effects, predict
    >>> moments = Moments(count=[9, 9], mean=[[-1.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
    >>> found = effects(predict(moments, Penalty(features=0.25, head=0.25)))
    >>> found.shared.mean_error.tolist(), found.private.mean_error.tolist()
    ([[1.0], [-1.0]], [[0.0], [0.0]])
    >>> found.corrected.mean_error.round(4).tolist(), found.corrected.rms_difference.tolist()
    ([[0.1768], [-0.1768]], [[0.0], [0.0]])
    >>> found
    Effects(2 clients, 1 target, mean errors up to 1 with a shared bias)
    >>> found.to_frame().query("bias == 'shared'").mean_error.tolist()
    [1.0, -1.0]
    """

    shared: Effect
    private: Effect
    corrected: Effect
    prediction: Prediction
    scale: Array

    def __repr__(self) -> str:
        largest = np.abs(self.shared.mean_error).max()
        dimensions = self.prediction.moments.dimensions
        return f"Effects({dimensions}, mean errors up to {largest:.3g} with a shared bias)"


def effects(prediction: Prediction, scale: Array | None = None) -> Effects:
    """Compute mean errors and differences from centralized predictions per client and target, eq. (B3).

    They hold for networks that fit their training rows, on these rows.

    Parameters
    ----------
    prediction
        Result of `predict`.
    scale
        Unit of each target in the prediction, (C,); by default what `Moments.scaled` divided by, else one.

    Returns
    -------
    Effects
        With the shared bias, a private bias, and the correction; arrays (..., M, C).

    Raises
    ------
    InputError
        If `prediction` is not a Prediction, or the scale is not one positive number per target.

    Examples
    --------
    >>> from fedgram import Moments, Penalty, effects, predict
    >>> moments = Moments(count=[9, 9], mean=[[0.0], [0.0]], covariance=[[[1.0]], [[9.0]]])
    >>> found = effects(predict(moments, Penalty(features=0.01, head=0.01)))
    >>> found.shared.rms_difference.round(3).tolist()
    [[0.36], [0.631]]
    """
    check_type(prediction, Prediction, "effects()", "Build it with predict(moments, penalty)")
    moments = prediction.moments
    unit = moments.scale if scale is None else check_scale(scale, len(moments.targets))
    central = _centralized_slope(prediction)
    slope_change = _client_slopes(prediction) - central[..., None, :, :]
    spread = np.einsum("...mci,...mij,...mcj->...mc", slope_change, moments.covariance, slope_change)
    shift = np.einsum("...ci,...mi->...mc", central, moments.offset)  # K_cen d_m

    def effect(bias: Array, variance: Array) -> Effect:
        """Effect of predictions with mean μ_g + bias and these variances of the difference, (..., M, C)."""
        difference = np.sqrt(np.maximum(variance, 0.0) + (bias - shift) ** 2)
        return Effect(unit * (bias - moments.offset), unit * difference)

    return Effects(
        shared=effect(np.zeros_like(shift), spread),
        private=effect(moments.offset, spread),
        corrected=effect(shift, np.zeros_like(shift)),
        prediction=prediction,
        scale=unit,
    )


def _client_slopes(prediction: Prediction) -> Array:
    """K_m = W_⋆ Ŵ_mᵀ A_m⁻¹, (..., M, C, C)."""
    shared = prediction.barycenter.factor[..., None, :, :]
    selected = psd.closest_factor(shared, prediction.grams)
    regularized = prediction.grams + prediction.penalty.features * np.eye(shared.shape[-1])
    return np.linalg.solve(regularized, selected @ shared.mT).mT  # A_m is symmetric


def _centralized_slope(prediction: Prediction) -> Array:
    """K_cen = A_cen⁻¹ G_cen, symmetric, (..., C, C)."""
    gram = prediction.centralized
    return np.linalg.solve(gram + prediction.penalty.features * np.eye(gram.shape[-1]), gram)
