"""Small files in the form in which image datasets are published; each image shows which one it is."""

import io
import pickle
import struct
import tarfile

import h5py
import numpy as np
from PIL import Image
from scipy.io import savemat

from fedgram.data.datasets.loaders import sprites

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
PACKED = "dsprites_rerendered_60k.npz"


def tar_gz(path, files):
    """An archive of contents by name."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


# MPIIGaze: the first two pixels of an eye's image are the person and the number of the eye


def eye(person, start, count, shape=(36, 60)):
    rng = np.random.default_rng([person, start])
    images = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = person, np.arange(start, start + count)
    return {
        "gaze": gaze(person, np.arange(start, start + count)),
        "image": images,
        "pose": np.zeros((count, 3)),
    }


def gaze(person, number):
    """A unit vector towards the camera that only this eye has."""
    person, number = np.broadcast_arrays(person, number)
    x, y = 0.05 * person - 0.2 + 0.003 * number, 0.02 * person - 0.1 - 0.001 * number
    return np.stack([x, y, -np.sqrt(1 - x**2 - y**2)], axis=1)


def mpiigaze(folder, persons=3, days=2, eyes=10):
    """Days of persons, each with as many left as right eyes."""
    for person in range(persons):
        for day in range(days):
            start = 2 * eyes * day
            data = {"left": eye(person, start, eyes), "right": eye(person, start + eyes, eyes)}
            path = folder / f"p{person:02}" / f"day{day + 1:02}.mat"
            path.parent.mkdir(parents=True, exist_ok=True)
            names = np.array([[f"{n:04}.jpg"] for n in range(eyes)], dtype=object)
            savemat(path, {"data": data, "filenames": names}, do_compression=True)


# 300W-LP: a red face with the landmarks at its border, on blue; its width shows its yaw


def face(folder, number, landmarks=68, size=(450, 450), **replace):
    """One image with its .mat."""
    folder.mkdir(parents=True, exist_ok=True)
    left, upper, right, lower = 150, 120, 230 + 2 * number, 320
    picture = np.zeros((*size, 3), dtype=np.uint8)
    picture[..., 2] = 255
    picture[upper:lower, left:right] = [255, 0, 0]
    Image.fromarray(picture).save(folder / f"{folder.name}_{number}_1_0.jpg", quality=95)
    rng = np.random.default_rng(number)
    points = np.stack([rng.uniform(left, right, landmarks), rng.uniform(upper, lower, landmarks)])
    points[:, :2] = [[left, right], [upper, lower]]
    if landmarks == 21:
        points[:, 5:9] = -1  # not visible
    content = {
        "pt2d": points, "roi": np.ones((1, 4)), "Illum_Para": np.zeros((1, 10)),
        "Shape_Para": np.zeros((199, 1)), "Exp_Para": np.zeros((29, 1)),
        "Pose_Para": np.array([[0.1 * np.sin(number), 0.01 * number, 0.05 * np.cos(number), 1, 2, 3, 4]]),
    } | replace  # fmt: skip
    savemat(folder / f"{folder.name}_{number}_1_0.mat", {k: v for k, v in content.items() if v is not None})


# dSprites and 3D Shapes


def dsprites_latents(count):
    rows = np.random.default_rng(1).choice(737_280, count, replace=False)
    classes = np.unravel_index(rows, [len(values) for values in sprites.VALUES])
    return np.stack([values[c] for values, c in zip(sprites.VALUES, classes, strict=True)], axis=1)


def dsprites(path, count=300, **replace):
    """The official layout, with the pickled metadata that nobody should have to unpickle."""
    latents = dsprites_latents(count)
    content = {
        "metadata": np.array({"version": 1}, dtype=object),
        "imgs": sprites.render(latents) // 255,
        "latents_values": latents,
        "latents_classes": latents.astype(np.int64),
    } | replace
    np.savez_compressed(path, **{name: array for name, array in content.items() if array is not None})


def shapes3d(path, count=300, **replace):
    """Compressed chunks that hold a patch of many images; the first two bytes are the number of the image."""
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(count) // 256, np.arange(count) % 256
    content = {"images": images, "labels": rng.random((count, 6))} | replace
    with h5py.File(path, "w") as file:
        for name, array in content.items():
            if array is not None:
                chunks = tuple(max(side // 4, 1) for side in array.shape)
                file.create_dataset(name, data=array, chunks=chunks, compression="gzip")
    return content


# CIFAR-10


def cifar_planes(count=60, seed=3):
    """Records as the batches have them: planes of red, green, blue, (count, 3072)."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def cifar_binary(planes):
    labels = np.arange(len(planes), dtype=np.uint8)[:, None] % 10
    return np.concatenate([labels, planes], axis=1).tobytes()


def cifar_pickle(planes):
    """As Python 2 and the NumPy of 2009 wrote it: protocol 2, byte strings, modules under their old names."""
    content = io.BytesIO()
    labels = (np.arange(len(planes)) % 10).tolist()
    _Python2Pickler(content, protocol=2).dump(
        {"data": planes, "labels": labels, "batch_label": "training batch 1 of 5", "filenames": ["a.png"]}
    )
    return content.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


class _Python2Pickler(pickle._Pickler):
    """Text and bytes alike become the byte strings that Python 2 had."""

    def save_string(self, text):
        data = text.encode() if isinstance(text, str) else text
        short = len(data) < 256
        self.write(b"U" + struct.pack("<B", len(data)) if short else b"T" + struct.pack("<i", len(data)))
        self.write(data)
        self.memoize(text)

    dispatch = pickle._Pickler.dispatch | {str: save_string, bytes: save_string}
