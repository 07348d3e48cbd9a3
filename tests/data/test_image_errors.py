"""What is wrong with image files, said in one sentence: which file, what, and what to do."""

import lzma
import shutil

import numpy as np
import pytest
from scipy.io import savemat

from fedgram import InputError
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import mpiigaze
from tests.helpers import published_images as published

DEFAULT = Options()
NAMES = ("mpiigaze", "300w-lp", "dsprites", "dsprites-rerendered", "3dshapes", "cifar-geo")
DAY = "MPIIGaze/Data/Normalized/p00/day01.mat"
FACE = "300W_LP/AFW/AFW_0_1_0"
BATCH = "cifar-10-batches-py/data_batch_1"


def sentence(name, folder, train=16, test=8, options=DEFAULT):
    """What loading the dataset from the folder answers."""
    entry = registry.dataset(name)
    with pytest.raises(InputError) as refusal:
        entry.load(entry.find(folder, options), options, train=train, test=test)
    message = refusal.value.message
    assert refusal.value.field
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def whole_folder(tmp_path_factory):
    """All datasets, small."""
    tmp_path = tmp_path_factory.mktemp("whole")
    published.mpiigaze(tmp_path / "MPIIGaze/Data/Normalized", persons=1, days=1, eyes=12)
    for number in range(24):
        published.face(tmp_path / "300W_LP/AFW", number, size=(400, 400))
    published.dsprites(tmp_path / published.DSPRITES, 24)
    packed = np.random.default_rng(0).integers(0, 256, (24, 512), dtype=np.uint8)
    latents = published.dsprites_latents(24)
    np.savez_compressed(tmp_path / published.PACKED, imgs_packed=packed, latents_values=latents)
    published.shapes3d(tmp_path / "3dshapes.h5", 24)
    (tmp_path / BATCH).parent.mkdir()
    (tmp_path / BATCH).write_bytes(published.cifar_pickle(published.cifar_planes(24)))
    return tmp_path


@pytest.fixture
def folder(whole_folder, tmp_path):
    """A copy of them that a test may spoil."""
    return shutil.copytree(whole_folder, tmp_path / "data")


FILES = {
    "mpiigaze": DAY,
    "300w-lp": f"{FACE}.mat",
    "dsprites": published.DSPRITES,
    "dsprites-rerendered": published.PACKED,
    "3dshapes": "3dshapes.h5",
    "cifar-geo": BATCH,
}


@pytest.mark.parametrize("name", NAMES)
def test_small_files_can_be_loaded(name, folder):
    entry = registry.dataset(name)
    problem = entry.load(entry.find(folder, DEFAULT), DEFAULT, train=16, test=8)
    assert sum(len(split) for split in problem.train.values()) == 16


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder(name, tmp_path):
    entry = registry.dataset(name)
    with pytest.raises(
        InputError, match=f"'{name}' needs .*there is no '{tmp_path}.*fedgram data fetch {name}"
    ):
        entry.find(tmp_path, DEFAULT)


@pytest.mark.parametrize("name", NAMES)
def test_fewer_rows_than_asked(name, folder):
    assert sentence(name, folder, train=20).startswith(
        f"The dataset '{name}' needs 28 images, but its files have 24"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_files_cut_short(name, part, folder):
    path = folder / FILES[name]
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    assert f"'{path}' " in sentence(name, folder)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_something_else(name, folder):
    (folder / FILES[name]).write_bytes(b"<html>404 not found</html>" * 100)
    assert f"Cannot read '{folder / FILES[name]}' as" in sentence(name, folder)


@pytest.mark.parametrize(("name", "usual", "larger"), [("3dshapes", 15, 51), ("cifar-geo", 15, 43)])
def test_as_many_rows_as_the_paper_has(name, usual, larger, folder):
    entry = registry.dataset(name)
    for options, thousands in ((DEFAULT, usual), (Options(larger=True), larger)):
        with pytest.raises(InputError, match=f"'{name}' needs {thousands},000 images, but its files have 24"):
            entry.load(entry.find(folder, options), options)


@pytest.mark.parametrize("name", ["mpiigaze", "300w-lp", "dsprites", "sprites", "swimmer-mini"])
def test_a_larger_variant_that_does_not_exist(name):
    with pytest.raises(InputError, match=f"'{name}' has no larger training set"):
        registry.dataset(name).load((), Options(larger=True))


# Each dataset's own


def test_eyes_of_the_wrong_size(folder):
    savemat(folder / DAY, {"data": {eye: published.eye(0, 0, 12, (30, 50)) for eye in ("left", "right")}})
    assert "is not MPIIGaze: Images must be 36 x 60 bytes, but they have shape (30, 50)" in sentence(
        "mpiigaze", folder
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"other": np.zeros(3)}, "It has no data.left.image or no data.left.gaze."),
        ({"data": {"left": published.eye(0, 0, 3)}}, "It has no data.right.image or no data.right.gaze."),
        ({"data": {"left": {"image": np.zeros((3, 36, 60), np.uint8)}}}, "no data.left.gaze."),
    ],
)
def test_eyes_without_a_field(content, said, folder):
    savemat(folder / DAY, content)
    assert sentence("mpiigaze", folder).endswith(said)


def test_eyes_with_too_few_gazes(folder):
    left = published.eye(0, 0, 12) | {"gaze": np.ones((5, 3))}
    savemat(folder / DAY, {"data": {"left": left, "right": published.eye(0, 12, 12)}})
    assert "data.left.gaze must have 3 columns and a row for each image" in sentence("mpiigaze", folder)


def test_a_truncated_archive_of_eyes(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("archive")
    published.tar_gz(
        other / mpiigaze.ARCHIVE,
        {f"MPIIGaze/Data/Normalized/p00/day0{d}.mat": (folder / DAY).read_bytes() for d in (1, 2)},
    )
    whole = (other / mpiigaze.ARCHIVE).read_bytes()
    (other / mpiigaze.ARCHIVE).write_bytes(whole[: len(whole) // 2])
    assert f"Cannot read '{other / mpiigaze.ARCHIVE}' as MPIIGaze" in sentence("mpiigaze", other)


def test_an_archive_without_eyes(tmp_path):
    published.tar_gz(tmp_path / mpiigaze.ARCHIVE, {"MPIIGaze/readme.txt": b"hello"})
    assert "has no Normalized/pXX/dayYY.mat" in sentence("mpiigaze", tmp_path)


def test_a_face_without_its_mat(folder):
    (folder / f"{FACE}.mat").unlink()
    assert sentence("300w-lp", folder).endswith("has no 'AFW_0_1_0.mat'.")


@pytest.mark.parametrize("missing", ["Pose_Para", "pt2d"])
def test_a_face_without_annotation(missing, folder):
    published.face(folder / "300W_LP/AFW", 0, **{missing: None})
    assert f"is not a .mat of 300W-LP: It has no {missing} of shape" in sentence("300w-lp", folder)


def test_a_face_whose_landmarks_are_all_unknown(folder):
    published.face(folder / "300W_LP/AFW", 0, pt2d=np.full((2, 68), -1.0))
    assert "It has no landmark in the image" in sentence("300w-lp", folder)


def test_a_broken_photograph(folder):
    path = folder / f"{FACE}.jpg"
    path.write_bytes(path.read_bytes()[:2000])
    assert f"Cannot read '{path}' as an image of 300W-LP" in sentence("300w-lp", folder)


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        ({"latents_values": None}, "latents_values"),
        ({"imgs": None}, "imgs"),
        ({"imgs": np.zeros((24, 32, 32), np.uint8)}, "imgs must be uint8 of shape (24, 64, 64)"),
        ({"imgs": np.zeros((24, 64, 64), np.float32)}, "but it is float32 of shape (24, 64, 64)"),
        ({"latents_values": np.zeros((24, 5))}, "latents_values must have the columns color, shape"),
    ],
)
def test_dsprites_of_another_layout(replace, said, folder):
    published.dsprites(folder / published.DSPRITES, 24, **replace)
    message = sentence("dsprites", folder)
    assert published.DSPRITES in message
    assert said in message


@pytest.mark.parametrize(
    ("replace", "said"),
    [
        ({"labels": None}, "It has no 'labels'"),
        ({"images": None}, "It has no 'images'"),
        ({"labels": np.zeros((24, 5))}, "labels must have the columns floor hue"),
        ({"labels": np.zeros((25, 6))}, "It has 25 labels but 24 images"),
        ({"images": np.zeros((24, 32, 32, 3), np.uint8)}, "Images must be 64 x 64 x 3 bytes"),
    ],
)
def test_3dshapes_of_another_layout(replace, said, folder):
    published.shapes3d(folder / "3dshapes.h5", 24, **replace)
    assert f"3dshapes.h5' is not the file of 3D Shapes: {said}" in sentence("3dshapes", folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (published.cifar_pickle(published.cifar_planes(24)[:, :3000]), "Images must be 3072 bytes"),
        (
            published.cifar_pickle(published.cifar_planes(24)).replace(b"U\x04data", b"U\x04nada"),
            "no array 'data'",
        ),
    ],
)
def test_pickled_batches_of_another_layout(content, said, folder):
    (folder / BATCH).write_bytes(content)
    assert said in sentence("cifar-geo", folder)


@pytest.mark.parametrize("part", [0.0, 0.5])
@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_binary_batches_cut_short(part, suffix, tmp_path):
    content = published.cifar_binary(published.cifar_planes(5))
    content = lzma.compress(content) if suffix else content
    path = tmp_path / f"data_batch_1.bin{suffix}"
    path.write_bytes(content[: int(part * len(content))])
    assert f"'{path}' " in sentence("cifar-geo", tmp_path)


def test_archives_of_batches_cut_short_or_without_batches(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    published.tar_gz(path, {BATCH: published.cifar_pickle(published.cifar_planes(24))})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert f"Cannot read '{path}' as CIFAR-10 batches" in sentence("cifar-geo", tmp_path)
    published.tar_gz(path, {"cifar-10-batches-py/test_batch": b"?"})
    assert "has no data_batch" in sentence("cifar-geo", tmp_path)
