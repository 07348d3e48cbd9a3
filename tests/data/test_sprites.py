"""Our own sprites: shapes, factors, and agreement with the frames that dSprites publishes."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgram import InputError, Penalty
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import sprites
from fedgram.theory.predict import predict

SHAPES = st.sampled_from([1.0, 2.0, 3.0])


def one(shape, scale=1.0, angle=0.0, x=0.5, y=0.5):
    return sprites.render(np.array([[1.0, shape, scale, angle, x, y]]))[0] // 255


@pytest.fixture(scope="module")
def problem():
    return registry.dataset("sprites").load((), Options())


def test_no_pixel_of_a_shape_is_out_of_reach(monkeypatch):
    largest = np.array(list(product([1.0], sprites.SHAPES, [1.0], *sprites.VALUES[3:5], [0.5])))
    images = sprites.render(largest)
    monkeypatch.setattr(sprites, "REACH", 15)
    np.testing.assert_array_equal(sprites.render(largest), images)


def test_as_many_images_as_the_paper_has(problem):
    assert {len(split) for split in problem.train.values()} == {1_500}
    assert sum(len(split) for split in problem.test.values()) == 3_000
    assert problem.kind == "GENERATED"
    first = problem.train["client 1"].inputs
    assert (first.shape, first.dtype) == ((1_500, 64, 64, 1), np.uint8)
    assert set(np.unique(first)) == {0, 255}


def test_clients_are_fully_active(problem):
    prediction = predict(problem.moments, Penalty(0.01, 0.01))
    assert prediction.fully_active
    assert prediction.activity.eigenvalue.min() > 5e-3
    np.testing.assert_allclose(problem.moments.pooled.covariance.diagonal(), 1)


def test_the_seed_chooses_the_rows():
    first, same, other = (
        registry.dataset("sprites").load((), Options(seed), train=80, test=20).digest for seed in (0, 0, 1)
    )
    assert first == same != other


@given(SHAPES, st.floats(0.5, 1), st.floats(0, 6.3), st.integers(0, 31), st.integers(0, 31))
@settings(max_examples=60, deadline=None)
def test_a_sprite_lies_around_its_position(shape, scale, angle, x, y):
    image = one(shape, scale, angle, x / 31, y / 31)
    down, across = np.nonzero(image)
    center = 15.5 + 32 * np.array([x / 31, y / 31])
    np.testing.assert_allclose([across.mean(), down.mean()], center, atol=2.5 if shape == 3 else 0.5)
    assert np.hypot(across - center[0], down - center[1]).max() < 14 * scale


@pytest.mark.parametrize(
    ("shape", "area"),
    [
        (1, 4 * sprites.SQUARE**2),
        (2, np.pi * np.prod(sprites.ELLIPSE)),
        (3, 180 * np.pi * np.prod(sprites.HEART)),  # ∮ x dy of the curve
    ],
)
def test_a_sprite_has_the_area_of_its_shape(shape, area):
    turned = [
        one(shape, scale, angle).sum() / scale**2 for angle in np.arange(0, 3, 0.1) for scale in (0.7, 1)
    ]
    assert np.mean(turned) == pytest.approx(area, rel=0.01)


def test_the_heart_is_its_parametric_curve():
    t = np.linspace(0, 2 * np.pi, 501)
    height = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    x, y = 16 * sprites.HEART[0] * np.sin(t) ** 3, -sprites.HEART[1] * height - sprites.HEART_RISE
    assert sprites.is_in_heart(0.99 * x, 0.99 * y).all()
    assert not sprites.is_in_heart(1.01 * x, 1.01 * y).any()


def test_symmetries():
    quarter = np.pi / 2
    np.testing.assert_array_equal(one(1, angle=0.3), one(1, angle=0.3 + quarter))
    np.testing.assert_array_equal(one(2, angle=0.3), one(2, angle=0.3 + 2 * quarter))
    np.testing.assert_array_equal(one(3), one(3)[:, ::-1])
    np.testing.assert_array_equal(one(3, angle=0.3 + quarter), np.rot90(one(3, angle=0.3)))


def test_there_is_no_larger_variant():
    with pytest.raises(InputError, match="'sprites' has no larger training set"):
        registry.dataset("sprites").load((), Options(larger=True))


def test_published_frames_agree_to_two_pixels(shared_data):
    with np.load(shared_data / "dsprites_official_gif_frames.npz") as frames:
        images, latents = frames["imgs"], frames["latents_values"]
    differing = (sprites.render(latents) // 255 != images).sum(axis=(1, 2))
    assert len(differing) == 320
    assert differing.max() <= 2
    assert differing.sum() <= 8
