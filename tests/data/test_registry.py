"""Datasets by name, their cache, and the commands `data list` and `data check`."""

import hashlib
import json
import logging
import os
import sys
import zipfile
from dataclasses import replace
from pkgutil import iter_modules
from types import SimpleNamespace

import numpy as np
import pytest

from fedgram import InputError
from fedgram.data.datasets import cache, registry
from fedgram.data.datasets import loaders as loaders_package
from fedgram.data.datasets.dataset import Dataset, Options, data_directory
from fedgram.data.datasets.inspection import check_presence, inspect_dataset
from fedgram.data.problem import Problem
from fedgram.data.split import Split
from tests.helpers import published_files as published
from tests.helpers.command import fedgram

# Registry


def test_every_name_leads_to_its_dataset():
    for name in registry.names():
        entry = registry.dataset(name)
        assert entry.name == name
        assert entry.kind in ("REAL", "GENERATED", "RE-RENDERED")
        assert all((entry.title, entry.license, entry.citation, entry.published))


def test_the_registry_has_the_papers_datasets_and_every_loader():
    loaders = {registry.dataset(name).loader.__name__.rpartition(".")[2] for name in registry.names()}
    assert loaders == {each.name for each in iter_modules(loaders_package.__path__)}
    paper = {"beijing", "swimmer", "hopper", "halfcheetah", "walker",
             "mpiigaze", "300w-lp", "dsprites", "3dshapes", "cifar-geo"}  # fmt: skip
    assert paper <= set(registry.names())


@pytest.mark.parametrize("name", registry.names())
def test_a_dataset_that_is_absent_says_what_to_do(name, tmp_path):
    entry = registry.dataset(name)
    try:
        assert not entry.find(tmp_path, Options()) or entry.find(tmp_path, Options())[0].exists()
    except InputError as error:
        assert f"fedgram data fetch {name}" in error.message  # noqa: PT017, embedded ones do not raise
        assert entry.downloads or entry.obtain


def test_a_mistyped_name_is_answered_with_the_nearest():
    for typed, meant in (("beijng", "beijing"), ("Hopper", "hopper"), ("3d-shapes", "3dshapes")):
        with pytest.raises(InputError, match=f"no dataset '{typed}'; did you mean '{meant}'"):
            registry.dataset(typed)


def test_a_name_that_is_like_none_is_not_answered_with_another():
    with pytest.raises(
        InputError, match=r"^There is no dataset 'foo'\. Run 'fedgram data list' for all names\.$"
    ):
        registry.dataset("foo")


def test_a_variant_must_be_one_of_the_datasets():
    with pytest.raises(InputError, match=r"no variant 'ppo'. Its variants are ppo_stoch, tqc_det, tqc_stoch"):
        registry.load("hopper-rollouts", options=Options(variant="ppo"))
    with pytest.raises(InputError, match=r"'gaussian' has no variant 'big'. It has no variants"):
        registry.load("gaussian", options=Options(variant="big"))


def test_the_data_directory_is_given_or_in_the_environment(tmp_path, monkeypatch):
    published.write_episodes(tmp_path / "mujoco_hopper_ppo_stoch.parquet", published.episodes(11, 3))
    given = registry.load("hopper-rollouts", str(tmp_path))
    monkeypatch.setenv("FEDGRAM_DATA", str(tmp_path))
    assert registry.load("hopper-rollouts").digest == given.digest
    monkeypatch.setenv("FEDGRAM_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match="elsewhere"):
        registry.load("hopper-rollouts")
    assert registry.load("hopper-rollouts", str(tmp_path)).digest == given.digest


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", "cache/fedgram"), ("win32", "local/fedgram"), ("darwin", "Library/Caches/fedgram")],
)
def test_the_data_directory_is_where_the_platform_keeps_caches(tmp_path, monkeypatch, platform, place):
    monkeypatch.delenv("FEDGRAM_DATA", raising=False)
    for name, folder in (("XDG_CACHE_HOME", "cache"), ("LOCALAPPDATA", "local"), ("HOME", "")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setattr(sys, "platform", platform)
    assert data_directory() == tmp_path / place


# Cache


class Toy:
    """A dataset in one file of numbers, which counts how often it is read."""

    def __init__(self, folder):
        self.loader = SimpleNamespace(find=self.find, load=self.read)
        self.file, self.reads = folder / "numbers.npy", 0
        self.write(0)
        self.dataset = Dataset("toy", "REAL", "Toy", "none", "none", "nowhere", self.loader)

    def write(self, seed):
        np.save(self.file, np.random.default_rng(seed).standard_normal((20, 2)))

    def find(self, dataset, folder, options):
        if not (folder / self.file.name).exists():
            raise InputError("There are no numbers.")
        return [folder / self.file.name]

    def read(self, dataset, files, options):
        self.reads += 1
        targets = np.load(files[0]) + options.seed
        images = np.zeros((20, 8, 8, 1), np.uint8)
        train = {"a": Split(images, targets), "b": Split(images[:7], targets[:7])}
        test = {"a": Split(images[:0], targets[:0]), "b": Split(images[:3], targets[:3])}
        return Problem("toy", "REAL", train, test, ("u", "v"), {"files": {"numbers.npy": "0"}, "seed": 0})

    def load(self, folder=None, **options):
        return cache.load(self.dataset, folder or self.file.parent, Options(**options))


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_a_second_load_reads_the_cache_only(toy, monkeypatch):
    first = toy.load()
    monkeypatch.setattr(cache, "hash_file", None)  # would fail if the source were read
    second = toy.load()
    assert toy.reads == 1
    assert second.digest == first.digest
    assert (second.name, second.kind, second.target_names) == (first.name, first.kind, first.target_names)
    assert second.provenance == first.provenance
    assert second.train["a"].inputs.dtype == np.uint8
    assert len(second.test["a"]) == 0


def test_other_options_sources_or_code_load_again(toy, monkeypatch):
    first = toy.load()
    assert toy.load(seed=1).digest != first.digest
    os.utime(toy.file, (1, 1))  # another time of change, but the same content
    toy.load()
    assert toy.reads == 2
    toy.write(7)
    assert toy.load().digest != first.digest
    assert toy.reads == 3
    monkeypatch.setattr(cache, "LOADERS_VERSION", "another")
    toy.load()
    assert toy.reads == 4


def test_files_of_one_name_are_told_apart_by_their_folders(toy):
    folder = toy.file.parent
    paths = [folder / person / "day.npy" for person in ("p00", "p01")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(toy.file.read_bytes())
    dataset = replace(toy.dataset, loader=SimpleNamespace(find=lambda *_: paths, load=toy.read))
    first = cache.load(dataset, folder, Options())
    toy.write(7)
    paths[0].write_bytes(toy.file.read_bytes())
    assert cache.load(dataset, folder, Options()).digest != first.digest


@pytest.mark.parametrize("damage", ["cut", "flipped", "replaced", "empty"])
def test_a_damaged_cache_is_made_again_with_a_sentence(toy, caplog, damage):
    first = toy.load()
    path = cache.cache_path("toy", toy.file.parent, Options())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    flipped = bytes(content)
    damaged = {
        "cut": flipped[: len(flipped) // 2],
        "flipped": flipped,
        "replaced": b"no zip" * 50,
        "empty": b"",
    }
    path.write_bytes(damaged[damage])
    assert toy.load().digest == first.digest
    assert toy.reads == 2
    assert ["is damaged" in record.message for record in caplog.records] == [True]
    caplog.clear()
    toy.load()
    assert toy.reads == 2
    assert not caplog.records


def test_without_sources_the_cache_is_used_and_says_so(toy, tmp_path):
    first = toy.load()
    toy.file.unlink()
    problem = toy.load()
    assert problem.digest == first.digest
    assert "source files absent" in problem.provenance["cache"]
    assert problem.provenance["files"] == first.provenance["files"]
    with pytest.raises(InputError, match="There are no numbers"):
        toy.load(seed=1)
    with pytest.raises(InputError, match="There are no numbers"):
        toy.load(tmp_path / "empty")


def test_a_folder_that_cannot_be_written_only_costs_time(toy, caplog):
    (toy.file.parent / "cache").touch()  # a file where the folder should be
    with caplog.at_level(logging.INFO):
        assert toy.load().digest == toy.load().digest
    assert toy.reads == 2
    assert "Cannot write the cache" in caplog.text


def test_compression_is_used_where_it_pays_and_nothing_else_is_left(toy):
    toy.load()
    path = cache.cache_path("toy", toy.file.parent, Options())
    assert list(path.parent.iterdir()) == [path]
    with zipfile.ZipFile(path) as archive:
        methods = {entry.filename: entry.compress_type for entry in archive.infolist()}
    assert methods["train/0/inputs.npy"] == zipfile.ZIP_DEFLATED
    assert methods["train/0/targets.npy"] == zipfile.ZIP_STORED


def test_an_interrupted_write_leaves_nothing(toy, monkeypatch):
    monkeypatch.setattr(cache, "_write_array", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        toy.load()
    assert list((toy.file.parent / "cache").iterdir()) == []


def test_embedded_datasets_leave_no_cache(tmp_path):
    assert registry.load("gaussian", tmp_path).digest == registry.load("gaussian", tmp_path).digest
    assert list(tmp_path.iterdir()) == []


# A look at the data directory


def test_presence_tells_files_cache_and_nothing_apart(toy, tmp_path):
    assert check_presence(toy.dataset, tmp_path).state == "present"
    assert check_presence(toy.dataset, tmp_path).bytes == toy.file.stat().st_size
    toy.load()
    toy.file.unlink()
    assert check_presence(toy.dataset, tmp_path).state == "cached"
    away = check_presence(toy.dataset, tmp_path / "empty")
    assert (away.state, away.bytes, away.missing) == ("missing", 0, "There are no numbers.")
    assert check_presence(registry.dataset("gaussian"), tmp_path).state == "embedded"


def test_inspection_reads_files_and_compares_published_checksums(tmp_path, monkeypatch):
    archive = tmp_path / "beijing+multi+site+air+quality+data.zip"
    archive.write_bytes(published.uci_bundle(published.beijing_tables()))
    with pytest.raises(InputError, match="is not the published file: its sha256 is not b04da438"):
        inspect_dataset("beijing", tmp_path, Options())
    entry = registry.dataset("beijing")
    without = replace(entry, downloads=(replace(entry.downloads[0], checksum=None),))
    monkeypatch.setattr(registry, "dataset", lambda name: without)
    inspection = inspect_dataset("beijing", tmp_path, Options())
    assert inspection.files[0].as_published is None
    document = inspection.document()
    assert document["train"] == {f"client {m}": 2250 for m in (1, 2, 3, 4)}
    assert sum(document["test"].values()) == 3000
    least = np.linalg.eigvalsh(inspection.problem.moments.covariance).min()
    assert document["smallest_eigenvalue"] == pytest.approx(least, rel=1e-9)
    assert not (tmp_path / "cache").exists()
    md5 = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    with_md5 = replace(entry, downloads=(replace(entry.downloads[0], checksum=md5),))
    monkeypatch.setattr(registry, "dataset", lambda name: with_md5)
    assert inspect_dataset("beijing", tmp_path, Options()).files[0].as_published
    with pytest.raises(InputError, match="'beijing' has no variant 'new'"):
        inspect_dataset("beijing", tmp_path, Options(variant="new"))


# Commands


def test_list_shows_every_dataset(tmp_path, monkeypatch):
    published.write_episodes(tmp_path / "mujoco_walker_ppo_stoch.parquet", published.episodes(17, 6))
    done = fedgram("data", "list", "--json", "--data-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    datasets = {each["name"]: each for each in json.loads(done.stdout)["datasets"]}
    assert list(datasets) == list(registry.names())
    assert datasets["walker-rollouts"]["state"] == "present"
    assert datasets["walker-rollouts"]["bytes"] > 100_000
    assert datasets["beijing"]["state"] == "missing"
    assert "fedgram data fetch beijing" in datasets["beijing"]["missing"]
    assert datasets["gaussian"]["state"] == "embedded"
    assert [datasets[name]["can_fetch"] for name in ("beijing", "gaussian")] == [True, False]
    monkeypatch.setenv("FEDGRAM_DATA", str(tmp_path))
    table = fedgram("data", "list", columns=160).stdout
    assert str(tmp_path) in table
    for name, each in datasets.items():
        assert any(line.split()[:2] == [name, each["kind"]] for line in table.splitlines() if line.strip())


def test_check_prints_moments_and_the_predicted_gap(tmp_path):
    published.write_episodes(tmp_path / "mujoco_hopper_tqc_det.parquet", published.episodes(11, 3))
    arguments = ("data", "check", "hopper-rollouts", "--variant", "tqc_det", "--data-dir", tmp_path)
    done = fedgram(*arguments, columns=160)
    assert done.returncode == 0, done.stderr
    for words in (
        "(GENERATED)",
        "no checksum is published",
        "2,000 test rows",
        "client 4",
        "smallest variance",
    ):
        assert words in done.stdout
    assert "Federated averaging will end" in done.stdout
    document = json.loads(fedgram(*arguments, "--json").stdout)
    problem = registry.load("hopper-rollouts", tmp_path, Options(variant="tqc_det"))
    assert document["digest"] == problem.digest
    assert document["moments"] == problem.moments.document()
    assert document["fully_active"] is True
    assert 0 < document["relative_gap"] < 1


def test_check_fails_in_a_sentence(tmp_path):
    done = fedgram("data", "check", "hopper", "--data-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedgram: The dataset 'hopper' needs JAT's training episodes")
    done = fedgram("data", "check", "hoper", "--json")
    assert json.loads(done.stderr)["error"]["field"] == "name"
