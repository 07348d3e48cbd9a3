"""Image datasets from small files in their published form, and from the real ones where they are at hand."""

import lzma
import pickle
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from fedgram import InputError, Penalty
from fedgram.data.datasets import preprocessing, registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import cifar_geo, dsprites, mpiigaze, sprites, w300lp
from fedgram.theory.predict import predict
from tests.helpers import published_images as published

DEFAULT = Options()
MPIIGAZE, FACES, DSPRITES, SHAPES, CIFAR_GEO = map(
    registry.dataset, ("mpiigaze", "300w-lp", "dsprites", "3dshapes", "cifar-geo")
)


def everything(splits):
    """Inputs and targets of all clients."""
    return tuple(
        np.concatenate([getattr(split, part) for split in splits.values()]) for part in ("inputs", "targets")
    )


def check_problem(problem, train, test, shape, clients=8):
    """Sizes, types, pooled training targets of mean 0 and variance 1, test rows of everybody."""
    inputs, targets = everything(problem.train)
    assert inputs.shape == (train, *shape)
    assert inputs.dtype == np.uint8
    assert targets.dtype == np.float64
    np.testing.assert_allclose(targets.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(targets.var(axis=0), 1, rtol=1e-12)
    assert len(problem.train) == len(problem.test) == clients
    assert sum(len(split) for split in problem.test.values()) == test
    if problem.name != "cifar-geo":
        assert {len(split) for split in problem.train.values()} == {train // clients}
        assert np.all(np.diff(projection(problem)) >= 0)


def projection(problem):
    """Lowest and highest position of each client along the leading direction, client by client."""
    targets = everything(problem.train)[1]
    direction = np.linalg.eigh(targets.T @ targets)[1][:, -1]
    direction *= np.sign(direction[np.abs(direction).argmax()])
    spans = [split.targets @ direction for split in problem.train.values()]
    return [bound for span in spans for bound in (span.min(), span.max())]


def unscaled(problem, raw_of):
    """Check that targets are an affine map, the same in training and test, of what the images show."""
    (inputs, targets), (more, other) = everything(problem.train), everything(problem.test)
    raw = raw_of(inputs)
    np.testing.assert_allclose(targets, (raw - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-9)
    np.testing.assert_allclose(other, (raw_of(more) - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-9)


# Helpers


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_rows_picked_from_blocks_are_those_of_the_whole(sizes, seed):
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (sum(sizes) + 1, 2, 3), dtype=np.uint8)
    rows = rng.permutation(len(whole))[: rng.integers(1, len(whole) + 1)]
    blocks = np.split(whole, np.cumsum(sizes))
    np.testing.assert_array_equal(preprocessing.gather_images(blocks, rows, (2, 3)), whole[rows])


def test_blocks_that_end_early_are_refused():
    with pytest.raises(InputError, match="ends after 4 images"):
        preprocessing.gather_images([np.zeros((4, 2, 2), np.uint8)], np.array([1, 4]), (2, 2))


def test_many_files_have_one_checksum_whatever_their_order(tmp_path):
    files = [tmp_path / name for name in ("a", "b")]
    for path in files:
        path.write_text(path.name)
    whole = preprocessing.combine_checksums(files, tmp_path)
    assert list(whole) == ["2 files"]
    assert preprocessing.combine_checksums(files[::-1], tmp_path) == whole
    renamed = files[1].rename(tmp_path / "c")
    assert preprocessing.combine_checksums([files[0], renamed], tmp_path) != whole


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    path = tmp_path / "3dshapes.h5"
    path.touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r"Reading 3D Shapes needs h5py: pip install 'fedgram\[data\]'\."):
        SHAPES.load([path], DEFAULT)


# MPIIGaze


@pytest.fixture(scope="module")
def gaze_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gaze")
    published.mpiigaze(folder / "MPIIGaze/Data/Normalized")
    return folder


def eyes_shown(inputs):
    """Angles of the eyes that images (N, 36, 60, 1) show: the second ten of each twenty are mirrored."""
    first, last = inputs[:, 0, :2, 0], inputs[:, 0, :-3:-1, 0]
    mirrored = (last[:, 0] < 3) & (last[:, 1] < 40) & (last[:, 1] % 20 >= 10)
    person, number = np.where(mirrored[:, None], last, first).astype(int).T
    vectors = published.gaze(person, number) * np.where(mirrored[:, None], [-1, 1, 1], 1)
    return mpiigaze.gaze_angles(vectors)


def test_mpiigaze(gaze_folder):
    files = MPIIGAZE.find(gaze_folder, DEFAULT)
    assert len(files) == 6
    problem = MPIIGAZE.load(files, DEFAULT, train=80, test=40)
    check_problem(problem, 80, 40, (36, 60, 1))
    unscaled(problem, eyes_shown)
    assert problem.kind == "REAL"
    assert list(problem.provenance["files"]) == ["6 files"]


def test_mpiigaze_from_its_archive_is_the_same(gaze_folder, tmp_path):
    files = MPIIGAZE.find(gaze_folder, DEFAULT)
    members = {
        f"MPIIGaze/{path.relative_to(gaze_folder / 'MPIIGaze')}": path.read_bytes() for path in files[::-1]
    }
    published.tar_gz(tmp_path / "MPIIGaze.tar.gz", members | {"MPIIGaze/readme.txt": b"hello"})
    archived = MPIIGAZE.load(MPIIGAZE.find(tmp_path, DEFAULT), DEFAULT, train=80, test=40)
    assert archived.digest == MPIIGAZE.load(files, DEFAULT, train=80, test=40).digest


def test_gaze_angles_follow_the_published_convention():
    straight, up, right = (0, 0, -1), (0, -np.sin(0.3), -np.cos(0.3)), (-np.sin(0.2), 0, -np.cos(0.2))
    np.testing.assert_allclose(
        mpiigaze.gaze_angles(np.array([straight, up, right])), [[0, 0], [0.3, 0], [0, 0.2]], atol=1e-15
    )


# 300W-LP


@pytest.fixture(scope="module")
def face_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    for number in range(60):
        published.face(folder / "300W_LP" / w300lp.SETS[number % 4], number, 21 if number == 7 else 68)
    published.face(folder / "300W_LP" / "AFW_Flip", 99)
    return folder


def test_300w_lp(face_folder):
    files = FACES.find(face_folder, DEFAULT)
    assert Counter(path.suffix for path in files) == {".jpg": 60, ".mat": 60}
    assert not any("Flip" in path.parent.name for path in files)
    problem = FACES.load(files, DEFAULT, train=40, test=20)
    check_problem(problem, 40, 20, (64, 64, 3))
    assert list(problem.provenance["files"]) == ["120 files"]


def test_a_face_is_cropped_to_its_landmarks_with_a_margin(face_folder):
    problem = FACES.load(FACES.find(face_folder, DEFAULT), DEFAULT, train=40, test=20)
    inputs, targets = everything(problem.train)
    red, blue = inputs[..., 0] > 128, inputs[..., 2] > 128
    height = red[:, :, 32].sum(axis=1)
    np.testing.assert_allclose(height / 64, 1 / 1.5, atol=0.04)  # the longer side fills two thirds
    assert blue[:, [0, 0, -1, -1], [0, -1, 0, -1]].all()
    width = red[:, 32].sum(axis=1)  # wider faces were given more yaw
    assert np.corrcoef(width, targets[:, 1])[0, 1] > 0.9


def test_a_crop_over_the_edge_is_square_and_known_landmarks_count():
    landmarks = np.array([[0.0, 40.0, -1.0, -1.0], [10.0, 20.0, -1.0, 90.0]])
    assert w300lp.compute_face_box(landmarks) == (-10, -15, 50, 45)


# dSprites


@pytest.mark.parametrize("name", ["dsprites", "dsprites-rerendered"])
def test_dsprites(name, tmp_path, monkeypatch):
    monkeypatch.setattr(dsprites, "BLOCK", 64)
    entry = registry.dataset(name)
    if name == "dsprites":
        published.dsprites(tmp_path / published.DSPRITES)
    else:
        latents = published.dsprites_latents(300)
        packed = np.packbits(sprites.render(latents).reshape(300, -1) // 255, axis=1)
        np.savez(tmp_path / published.PACKED, imgs_packed=packed, latents_values=latents.astype(np.float32))
    problem = entry.load(entry.find(tmp_path, DEFAULT), DEFAULT, train=240, test=60)
    check_problem(problem, 240, 60, (64, 64, 1))
    assert problem.kind == entry.kind == ("REAL" if name == "dsprites" else "RE-RENDERED")
    assert problem.target_names == ("posX", "posY", "scale")
    inputs, targets = everything(problem.train)
    assert set(np.unique(inputs)) == {0, 255}
    white = inputs[..., 0] / 255
    center = np.einsum("nyx,x->n", white, np.arange(64)) / white.sum(axis=(1, 2))
    assert np.corrcoef(center, targets[:, 0])[0, 1] > 0.99


def test_dsprites_images_are_those_of_their_latents(tmp_path):
    published.dsprites(tmp_path / published.DSPRITES)
    problem = DSPRITES.load(DSPRITES.find(tmp_path, DEFAULT), DEFAULT, train=240, test=60)
    latents = published.dsprites_latents(300)
    known = {
        image.tobytes(): row[[4, 5, 2]] for image, row in zip(sprites.render(latents), latents, strict=True)
    }
    unscaled(problem, lambda inputs: np.array([known[image.tobytes()] for image in inputs]))


def test_the_rerendered_sprites(shared_data):
    entry = registry.dataset("dsprites-rerendered")
    problem = entry.load(entry.find(shared_data, DEFAULT), DEFAULT)
    check_problem(problem, 12_000, 3_000, (64, 64, 1))
    check_fully_active(problem)


def check_fully_active(problem):
    prediction = predict(problem.moments, Penalty(0.01, 0.01))
    assert prediction.fully_active
    assert prediction.activity.eigenvalue.min() > 5e-3
    assert 0.1 < prediction.relative_gap < 1


# 3D Shapes


def test_3dshapes(tmp_path):
    content = published.shapes3d(tmp_path / "3dshapes.h5")
    problem = SHAPES.load(SHAPES.find(tmp_path, DEFAULT), DEFAULT, train=240, test=60)
    check_problem(problem, 240, 60, (64, 64, 3))
    assert problem.target_names == ("object hue", "scale", "orientation")

    def shown(inputs):
        number = inputs[:, 0, 0, :2].astype(int) @ [256, 1]
        np.testing.assert_array_equal(inputs, content["images"][number])
        return content["labels"][number][:, [2, 3, 5]]

    unscaled(problem, shown)


# CIFAR-geo


@pytest.fixture(scope="module")
def planes():
    return [published.cifar_planes(60, seed) for seed in (1, 2)]


def cifar_forms(planes):
    """Contents by name of each form in which the batches can lie there."""
    binary = [published.cifar_binary(batch) for batch in planes]
    pickled = [published.cifar_pickle(batch) for batch in planes]
    return {
        "python": {f"cifar-10-batches-py/data_batch_{b}": text for b, text in enumerate(pickled, 1)},
        "binary": {f"cifar-10-batches-bin/data_batch_{b}.bin": text for b, text in enumerate(binary, 1)},
        "plain": {f"data_batch_{b}.bin": text for b, text in enumerate(binary, 1)},
        "xz": {f"cifar10_data_batch_{b}.bin.xz": lzma.compress(text) for b, text in enumerate(binary, 1)},
    }


@pytest.mark.parametrize("form", ["python", "binary", "plain", "xz", "python tar", "binary tar"])
def test_cifar_images_from_every_published_form(form, planes, tmp_path):
    files = cifar_forms(planes)[form.removesuffix(" tar")]
    other = {"batches.meta": b"?", "test_batch": b"?", "test_batch.bin": b"?"}
    if form.endswith("tar"):
        folder = next(iter(files)).partition("/")[0]
        members = {f"{folder}/{name}": content for name, content in other.items()}
        members |= dict(reversed(files.items()))  # the published archives have them in no order
        published.tar_gz(tmp_path / f"cifar-10-{form.removesuffix(' tar')}.tar.gz", members)
    else:
        for name, content in (files | other).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
    found = cifar_geo.read_images(CIFAR_GEO.find(tmp_path, DEFAULT))
    expected = np.concatenate(planes).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), expected)


def test_a_batch_that_would_run_code_is_refused(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    batch.write_bytes(pickle.dumps({b"data": print}))
    with pytest.raises(InputError, match=r"it names builtins\.print, which no batch of CIFAR-10 does"):
        cifar_geo.read_images([batch])


def test_whole_shifts_move_pixels(planes):
    picture = planes[0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[:2]
    canvas = cifar_geo.transform_images(picture, np.array([[0, 0, 0], [3, -2, 0]]))
    expected = np.zeros((2, 40, 40, 3), np.uint8)
    expected[0, 4:36, 4:36] = picture[0]
    expected[1, 2:34, 7:39] = picture[1]
    np.testing.assert_array_equal(canvas, expected)


def test_shift_and_zoom_are_bilinear_interpolation(planes):
    picture = planes[0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    transforms = cifar_geo.draw_transforms(np.random.default_rng(0), np.arange(60) % 4)
    for image, canvas, (dx, dy, zoom) in zip(
        picture, cifar_geo.transform_images(picture, transforms), transforms, strict=True
    ):
        down, across = np.mgrid[:40, :40] - 19.5
        place = [(down - dy) / np.exp(zoom) + 15.5, (across - dx) / np.exp(zoom) + 15.5]
        for color in range(3):
            exact = map_coordinates(image[..., color].astype(float), place, order=1, mode="grid-constant")
            np.testing.assert_allclose(canvas[..., color], exact, atol=0.51)


LAWS = (
    lambda x, y, z: (-3 + 2.0 * x, -3 + 0.9 * x + 0.8 * y, -0.1 + 0.06 * z),
    lambda x, y, z: (3 + 0.8 * x, -3 + 2.0 * y, -0.3 + 0.12 * z),
    lambda x, y, z: (-3 + 1.2 * x, 3 - 1.0 * x + 0.6 * y, -0.3 + 0.05 * x + 0.05 * z),
    lambda x, y, z: (3 + 1.0 * x, 3 + 1.0 * y, -0.1 - 0.06 * y + 0.08 * z),
)


@pytest.mark.parametrize("client", range(4))
def test_the_law_of_a_client_is_the_documented_one(client):
    noise = np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, (20, 3))
    found = cifar_geo.draw_transforms(np.random.default_rng(0), np.full(20, client))
    np.testing.assert_allclose(found.T, LAWS[client](*noise.T), atol=1e-12)


def test_each_client_follows_its_law():
    client = np.repeat(np.arange(4), 50_000)
    transforms = cifar_geo.draw_transforms(np.random.default_rng(0), client).reshape(4, -1, 3)
    np.testing.assert_allclose(transforms.mean(axis=1), cifar_geo.MEANS, atol=0.03)
    for m, rows in enumerate(transforms):
        law = cifar_geo.SPREADS[m] @ cifar_geo.SPREADS[m].T
        deviation = np.sqrt(law.diagonal())
        np.testing.assert_allclose(
            np.cov((rows / deviation).T), law / np.outer(deviation, deviation), atol=0.02
        )
    assert 32 * np.exp(transforms[..., 2].max()) < 37  # less than the canvas, so that edges are seen


def test_cifar_geo(planes, tmp_path):
    for name, content in cifar_forms(planes)["plain"].items():
        (tmp_path / name).write_bytes(content)
    files = CIFAR_GEO.find(tmp_path, DEFAULT)
    problem = CIFAR_GEO.load(files, DEFAULT, train=80, test=40)
    check_problem(problem, 80, 40, (40, 40, 3), clients=4)
    assert {len(split) for split in problem.test.values()} == {10}
    again, other = (CIFAR_GEO.load(files, Options(seed=seed), train=80, test=40) for seed in (0, 1))
    assert problem.digest == again.digest != other.digest
    larger = CIFAR_GEO.load(files, Options(larger=True), train=80, test=40)
    assert {len(split) for split in larger.train.values()} == {10}
    assert len(larger.clients) == 8


@pytest.fixture(scope="module")
def real_cifar_geo(shared_data):
    files = CIFAR_GEO.find(shared_data, DEFAULT)
    return files, CIFAR_GEO.load(files, DEFAULT)


def test_cifar_geo_of_the_published_images(real_cifar_geo):
    _, problem = real_cifar_geo
    check_problem(problem, 12_000, 3_000, (40, 40, 3), clients=4)
    assert all(2_800 < len(split) < 3_200 for split in problem.train.values())
    assert {len(split) for split in problem.test.values()} == {750}
    check_fully_active(problem)
    # A client's test images follow its own law: their moments are those of its training images.
    for client, split in problem.train.items():
        test = problem.test[client].targets
        np.testing.assert_allclose(test.mean(axis=0), split.targets.mean(axis=0), atol=0.1)
        np.testing.assert_allclose(np.cov(test.T), np.cov(split.targets.T), atol=0.1)


def test_the_larger_variant_says_when_images_are_missing(real_cifar_geo):
    files, _ = real_cifar_geo
    with pytest.raises(InputError, match="'cifar-geo' needs 43,000 images, but its files have 10,000"):
        CIFAR_GEO.load(files[:1], Options(larger=True))
