"""What no honest site sends: sums of no rows, parameters that no optimizer reaches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram.flower.checks import (
    ReturnLimits,
    check_blend,
    check_sums,
    check_target_sums,
    find_distant_starts,
    measure_alignment,
    optimizer_reach,
)
from fedgram.flower.introduction import ClientInfo
from fedgram.flower.messages import ALONE_ERRORS, BLENDS, Payload, RejectedReplyError
from fedgram.nets.optimizer import AdamW, schedule
from fedgram.runs.train_config import TrainConfig
from fedgram.theory.geometry import psd
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.penalty import Penalty

FIELDS = list(FeatureSums.__dataclass_fields__)


def sums_of(seed: int, rows: int, scale: float) -> FeatureSums:
    rng = np.random.default_rng(seed)
    features = scale * rng.standard_normal((rows, 4)) + rng.standard_normal(4)
    features[:, 3] = features[:, 2]  # a repeated output
    features[:, 0] = 0.0  # a dead one
    return FeatureSums.from_rows(features, rng.standard_normal((rows, 2)))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 40), st.sampled_from([1e-6, 1.0, 1e6]))
def test_sums_of_rows_pass(seed, rows, scale):
    check_sums(sums_of(seed, rows, scale), rows)


@pytest.mark.parametrize("field", FIELDS)
def test_changed_sums_are_refused(field):
    sums = sums_of(0, 30, 1.0)
    changed = {**vars(sums), field: -10 * vars(sums)[field] - 1}
    with pytest.raises(RejectedReplyError):
        check_sums(FeatureSums(**changed), 30)


def info_of(rows: int, mean: np.ndarray, covariance: np.ndarray, validation_rows: int = 5) -> ClientInfo:
    return ClientInfo("a", rows, 0, validation_rows, ("x", "y"), 60, "n", 4, 20, mean, covariance)


def test_sums_must_have_the_target_moments_of_the_introduction():
    rng = np.random.default_rng(0)
    targets = rng.standard_normal((30, 2)) + 100
    sums = FeatureSums.from_rows(rng.standard_normal((30, 4)), targets)
    mean, covariance = targets.mean(axis=0), np.cov(targets.T, bias=True)
    check_target_sums(sums, info_of(30, mean, covariance))
    for other in ((mean + 0.01, covariance), (mean, 1.5 * covariance)):
        with pytest.raises(RejectedReplyError, match="other target moments"):
            check_target_sums(sums, info_of(30, *other))


@pytest.mark.parametrize("kind", ["constant", "burst", "random"])
def test_no_gradients_move_a_parameter_beyond_the_reach(kind):
    config = TrainConfig(epochs=8, batch=5, learning_rate=0.1, final_learning_rate=0.05, clip=1e9)
    rates = schedule(config, [10])
    parameters = {"w": torch.zeros(1, 1, dtype=torch.float64)}
    optimizer = AdamW(parameters, config.clip)
    generator = torch.Generator().manual_seed(0)
    for step in range(80):
        size = {"constant": 1.0, "burst": float(10.0**step if step < 40 else 0.0)}.get(kind)
        gradient = (
            torch.full((1, 1), size, dtype=torch.float64)
            if size is not None
            else torch.randn((1, 1), generator=generator, dtype=torch.float64)
        )
        optimizer.step(slice(0, 1), {"w": gradient}, rates[step])
    moved = float(parameters["w"].abs().max())
    assert 0 < moved <= optimizer_reach(config, rows=50)


def limits_of(reach: float, **broadcast) -> ReturnLimits:
    info = info_of(30, np.zeros(2), np.eye(2))
    return ReturnLimits(info, np.eye(2), np.zeros(2), 1.0, Penalty(), broadcast, 1.0, reach, None)


def test_parameters_that_moved_too_far_are_refused():
    limits = limits_of(0.5, backbone=np.zeros(3))
    limits._check_moves("backbone", np.array([0.5, -0.5, 0.0]))
    with pytest.raises(RejectedReplyError, match=r"its backbone moved by 0\.6; its optimizer can move"):
        limits._check_moves("backbone", np.array([0.0, 0.6, 0.0]))


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_selected_head_is_aligned_and_its_negative_is_refused(seed, features):
    rng = np.random.default_rng(seed)
    broadcast, local = rng.standard_normal((2, 2, features))
    selected = psd.closest_factor(broadcast, psd.gram(local))
    assert measure_alignment(selected, broadcast) == pytest.approx(1.0)
    assert measure_alignment(-selected, broadcast) == pytest.approx(-1.0)
    turn = np.linalg.qr(rng.standard_normal((features, features)))[0]
    turned = measure_alignment(local @ turn, broadcast @ turn)
    assert turned == pytest.approx(measure_alignment(local, broadcast), abs=1e-9)
    # Clients that differ much have a large spread, so the limit of steps does not bind.
    spread = {"head": 1e3, "bias": 1.0}
    limits = replace(limits_of(1.0, head=broadcast), gram=psd.gram(local), spread=spread, returned="solved")
    limits._check_head(selected)
    with pytest.raises(RejectedReplyError, match=r"its head points away from the shared one: alignment -1"):
        limits._check_head(-selected)
    limits._check_head(-0.05 * selected)  # optimizer noise where no direction is active
    assert measure_alignment(local, np.zeros_like(local)) == 1.0


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(1.0, 30.0), st.booleans())
def test_head_on_the_way_to_its_optimum_passes_and_three_times_the_longer_end_is_refused(seed, scale, is_far):
    rng = np.random.default_rng(seed)
    broadcast, local = rng.standard_normal((2, 2, 5)) * ([[[scale]], [[1.0]]] if is_far else 1.0)
    selected = psd.closest_factor(broadcast, psd.gram(local))
    spread = {"head": 1e3, "bias": 1.0}
    limits = replace(limits_of(1.0, head=broadcast), gram=psd.gram(local), spread=spread, returned="solved")
    for part in (0.0, 0.3, 1.0):
        limits._check_head((1 - part) * broadcast + part * selected)
    longer = max(broadcast, selected, key=lambda head: float((head**2).sum()))
    limits._check_head(1.9 * longer)
    with pytest.raises(RejectedReplyError, match="its head has a squared norm of"):
        limits._check_head(3 * longer)


@pytest.mark.parametrize("returned", ["trained", "aligned", "solved"])
def test_head_beyond_the_optimizers_reach_is_refused_unless_it_is_solved(returned):
    broadcast = np.random.default_rng(0).standard_normal((2, 8))
    limits = replace(limits_of(0.1, head=broadcast), gram=psd.gram(broadcast), returned=returned)
    limits._check_head(broadcast + 0.1)
    if returned == "solved":
        limits._check_head(1.5 * broadcast)
        return
    with pytest.raises(RejectedReplyError, match=r"from the shared one; the limit is 0\.4"):
        limits._check_head(1.5 * broadcast)


def test_reach_of_one_step_is_the_learning_rate_and_that_of_a_step_grows():
    reach = [optimizer_reach(TrainConfig(epochs=steps), rows=1) / steps for steps in range(1, 3000, 7)]
    assert reach[0] == pytest.approx(1e-3, rel=2e-3)
    assert (np.diff(reach) > 0).all()
    assert np.isfinite(optimizer_reach(TrainConfig(), rows=10**15))  # the count is the client's word


def test_first_backbone_far_from_all_others_is_refused():
    limits = dict.fromkeys("abc", limits_of(0.5))
    near = {
        "a": {"backbone": np.zeros(3)},
        "b": {"backbone": np.full(3, 0.9)},
        "c": {"backbone": np.zeros(3)},
    }
    assert find_distant_starts(near, limits) == {}
    far = near | {"b": {"backbone": np.array([0.0, 0.0, 1.1])}}
    assert list(find_distant_starts(far, limits)) == ["b"]
    assert find_distant_starts({"a": {"head": np.zeros(3)}}, limits) == {}
    assert find_distant_starts({}, limits) == {}


@pytest.mark.parametrize(
    ("errors", "difference", "agreement", "alone", "rows"),
    [
        (0.0, -1.0, 0.0, 0.0, 5),
        (0.0, 0.0, 1.0, 0.0, 5),
        (0.0, 1.0, 0.0, 0.0, 0),
        (-1.0, 1.0, 0.0, 0.0, 5),
        (1.0, 0.0, 0.0, 0.0, 0),
        (1.0, 1.0, 1.0, -1.0, 5),
    ],
)
def test_false_comparisons_are_refused(errors, difference, agreement, alone, rows):
    values = (np.array([each, 0.0]) for each in (errors, difference, agreement, alone))
    reply = Payload(dict(zip((*BLENDS, ALONE_ERRORS), values, strict=True)))
    with pytest.raises(RejectedReplyError):
        check_blend(reply, info_of(30, np.zeros(2), np.eye(2), rows))
