"""Beijing, MuJoCo and Gaussian: loaders on files in the published form, and on the files at hand."""

import io
import tarfile
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from fedgram import InputError, Moments, Penalty, predict
from fedgram.data.datasets import registry
from fedgram.data.datasets.dataset import Options
from fedgram.data.datasets.loaders import beijing, gaussian, mujoco
from fedgram.data.datasets.registry import DEFAULT
from tests.helpers import published_files as published

BEIJING = registry.dataset("beijing")
JAT = {name: registry.dataset(name) for each in mujoco.WIDTHS for name in (each, f"{each}-rollouts")}
VARIANTS = JAT["hopper-rollouts"].variants
SIZES = {"swimmer": (8, 2), "hopper": (11, 3), "halfcheetah": (17, 6), "walker": (17, 6)}


def loaded(dataset, folder, options=DEFAULT):
    return dataset.load(dataset.find(folder, options), options)


def pooled(splits, what):
    return np.concatenate([getattr(split, what) for split in splits.values()])


def check_projection(problem):
    """Clients hold successive intervals of one target direction, and test rows lie nearest to theirs."""
    targets = pooled(problem.train, "targets")
    direction = np.linalg.svd(targets, full_matrices=False)[2][0]
    spans = [np.sort(split.targets @ direction)[[0, -1]] for split in problem.train.values()]
    order = np.argsort([low for low, _ in spans])
    assert list(order) in ([0, 1, 2, 3], [3, 2, 1, 0])
    assert all(spans[a][1] <= spans[b][0] for a, b in pairwise(order))
    for number, split in enumerate(problem.test.values()):
        position = (split.targets @ direction)[:, None]
        away = np.maximum([low for low, _ in spans] - position, position - [high for _, high in spans]).clip(
            0
        )
        np.testing.assert_allclose(away[:, number], away.min(axis=1), atol=1e-12)


# Beijing


@pytest.fixture(scope="module")
def tables():
    return published.beijing_tables()


@pytest.fixture(scope="module")
def beijing_folder(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("beijing")
    published.write_folder(folder / "PRSA_Data_20130301-20170228", tables)
    return folder


def test_beijing_has_the_papers_shape_and_scale(beijing_folder):
    problem = loaded(BEIJING, beijing_folder)
    assert (problem.kind, problem.target_names) == ("REAL", ("PM2.5", "NO2"))
    assert [len(split) for split in problem.train.values()] == [2250] * 4
    assert sum(len(split) for split in problem.test.values()) == 3000
    inputs, targets = pooled(problem.train, "inputs"), pooled(problem.train, "targets")
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((9000, 8), np.float32, np.float64)
    for values, accuracy in ((inputs, 1e-4), (targets, 1e-10)):
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=accuracy)
        np.testing.assert_allclose(values.std(axis=0), 1, rtol=accuracy)
    check_projection(problem)
    assert problem.provenance["complete_rows"] == 12 * (1050 - 21)
    assert set(problem.provenance["files"]) == {published.station_file(name) for name in beijing.STATIONS}


def test_beijing_rows_are_rows_of_the_tables_and_drawn_once(beijing_folder, tables):
    problem = loaded(BEIJING, beijing_folder)
    frames = [pd.read_csv(io.BytesIO(text)) for text in tables.values()]
    frame = pd.concat(frames)[[*beijing.INPUTS, *beijing.TARGETS]].dropna()
    scale = pd.Series(problem.provenance["scale"])[list(frame)].to_numpy()
    mean = pd.Series(problem.provenance["mean"])[list(frame)].to_numpy()
    rows = np.concatenate([
        np.hstack([pooled(part, "inputs"), pooled(part, "targets")]) for part in (problem.train, problem.test)
    ])  # fmt: skip
    known = {tuple(row) for row in frame.to_numpy().round(3)}
    drawn = {tuple(row) for row in (rows * scale + mean).round(3)}
    assert len(drawn) == 12_000  # so no test row is a training row
    assert len(drawn - known) < 10  # single precision can turn a last digit
    assert loaded(BEIJING, beijing_folder).digest == problem.digest
    assert loaded(BEIJING, beijing_folder, Options(seed=1)).digest != problem.digest


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("beijing+multi+site+air+quality+data.zip", published.uci_bundle),
        ("PRSA2017_Data_20130301-20170228.zip", published.zipped),
        ("beijing_PRSA_Data_20130301-20170228.tar.xz", published.tar_xz),
    ],
)
def test_beijing_is_the_same_from_every_form(beijing_folder, tables, tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(tables))
    from_archive = loaded(BEIJING, tmp_path)
    assert from_archive.digest == loaded(BEIJING, beijing_folder).digest
    assert list(from_archive.provenance["files"]) == [name]
    (tmp_path / name).write_bytes(pack(tables)[:20_000])
    with pytest.raises(InputError, match=r"Cannot read .* as the published tables: .* fetch it again"):
        loaded(BEIJING, tmp_path)


def test_beijing_says_what_is_wrong(tables, tmp_path):
    entry = BEIJING
    with pytest.raises(InputError, match=r"needs the 12 PRSA_Data CSV files.*fedgram data fetch beijing"):
        loaded(entry, tmp_path)
    published.write_folder(tmp_path, tables)
    first = tmp_path / published.station_file("Aotizhongxin")
    first.write_bytes(tables[first.name].replace(b'"PM2.5"', b'"PM25"'))
    with pytest.raises(InputError, match=r"station Aotizhongxin has no column 'PM2\.5'"):
        loaded(entry, tmp_path)
    first.write_bytes(tables[first.name].replace(b",300,", b",300,,", 1))
    with pytest.raises(InputError, match="station Aotizhongxin is damaged"):
        loaded(entry, tmp_path)
    first.write_bytes(tables[first.name][:-30])  # the last line is cut
    with pytest.raises(InputError, match="station Aotizhongxin is damaged"):
        loaded(entry, tmp_path)
    first.unlink()
    with pytest.raises(InputError, match="11 of the 12 stations, but not Aotizhongxin"):
        loaded(entry, tmp_path)
    published.write_folder(
        tmp_path, {name: text[:20_000].rpartition(b"\r\n")[0] for name, text in tables.items()}
    )
    with pytest.raises(InputError, match=r"needs 12,000 complete rows, but its files have [\d,]+\."):
        loaded(entry, tmp_path)
    with pytest.raises(InputError, match="no larger training set"):
        loaded(entry, tmp_path, Options(larger=True))


def test_beijing_without_rows_has_too_few(tables, tmp_path):
    published.write_folder(tmp_path, dict.fromkeys(tables, published.BEIJING_HEADER.encode()))
    with pytest.raises(InputError, match="its files have 0"):
        loaded(BEIJING, tmp_path)


def test_a_constant_column_cannot_be_scaled(tables, tmp_path):
    dry = {name: with_column(text, "RAIN", "0") for name, text in tables.items()}
    published.write_folder(tmp_path, dry)
    with pytest.raises(InputError, match="'RAIN' is constant over all 9,000 training rows"):
        loaded(BEIJING, tmp_path)


def with_column(text, name, value):
    header, *rows = text.decode().split("\r\n")
    place = header.replace('"', "").split(",").index(name)
    fields = [row.split(",") for row in rows if row]
    return "\r\n".join(
        [header, *(",".join([*row[:place], value, *row[place + 1 :]]) for row in fields)]
    ).encode()


# MuJoCo


def write_jat(folder, name, **settings):
    pairs = published.episodes(*SIZES[name], **settings)
    published.write_episodes(folder / f"mujoco-{name}/train-00000-of-00002-0123456789abcdef.parquet", pairs)
    return pairs


@pytest.mark.parametrize("name", SIZES)
def test_jat_gives_the_first_transitions_at_stored_scale(tmp_path, name):
    pairs = write_jat(tmp_path / "jat-dataset", name, lengths=(1500, 700, 1000, 1000, 5, 1200, 1000))
    problem = loaded(JAT[name], tmp_path)
    assert (problem.name, problem.kind) == (name, "REAL")
    assert [len(split) for split in problem.train.values()] == [1000] * 4
    seen, acted = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    for part, first, last in ((problem.train, 0, 4000), (problem.test, 4000, 6000)):
        inputs, targets = pooled(part, "inputs"), pooled(part, "targets")
        assert (inputs.dtype, targets.dtype) == (np.float32, np.float64)
        order, stored = np.lexsort(inputs.T), np.lexsort(seen[first:last].T)
        np.testing.assert_array_equal(inputs[order], seen[first:last][stored])
        np.testing.assert_array_equal(targets[order], acted[first:last][stored])
    assert len(problem.target_names) == SIZES[name][1]
    check_projection(problem)


def test_test_transitions_are_those_that_are_left(tmp_path):
    write_jat(tmp_path, "hopper", lengths=(2000, 2100))
    assert sum(map(len, loaded(JAT["hopper"], tmp_path).test.values())) == 100
    write_jat(tmp_path, "hopper", lengths=(2000, 2000))
    assert loaded(JAT["hopper"], tmp_path).test == {}


def test_episodes_behind_the_last_transition_are_not_read(tmp_path):
    pairs = published.episodes(11, 3, lengths=(4000, 2000, 10))
    pairs[2][0][:] = np.nan
    published.write_episodes(tmp_path / "mujoco_hopper_ppo_stoch.parquet", pairs)
    assert sum(map(len, loaded(JAT["hopper-rollouts"], tmp_path).test.values())) == 2000


def test_names_of_folders_are_taken_literally(tmp_path):
    for seed, folder in enumerate(("[1]", "1")):
        pairs = published.episodes(11, 3, seed=seed)
        published.write_episodes(tmp_path / folder / "mujoco_hopper_ppo_stoch.parquet", pairs)
    ours, theirs = (loaded(JAT["hopper-rollouts"], tmp_path / folder) for folder in ("[1]", "1"))
    assert ours.digest != theirs.digest


def test_rollouts_are_generated_and_have_variants(tmp_path):
    for seed, variant in enumerate(VARIANTS):
        pairs = published.episodes(11, 3, seed=seed)
        published.write_episodes(tmp_path / f"mujoco_hopper_{variant}.parquet", pairs)
    entry = JAT["hopper-rollouts"]
    assert (entry.kind, loaded(entry, tmp_path).kind) == ("GENERATED", "GENERATED")
    digests = {variant: loaded(entry, tmp_path, Options(variant=variant)).digest for variant in VARIANTS}
    assert len(set(digests.values())) == 3
    assert loaded(entry, tmp_path).digest == digests["ppo_stoch"]
    with pytest.raises(InputError, match="'hopper' needs JAT's training episodes"):
        loaded(JAT["hopper"], tmp_path)  # rollouts never pass for JAT


def test_mujoco_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"'swimmer-rollouts' needs the generated rollouts.*no '.*ppo_stoch"):
        loaded(JAT["swimmer-rollouts"], tmp_path)
    path = tmp_path / "mujoco_swimmer_ppo_stoch.parquet"

    def refused(sentence, pairs, **names):
        published.write_episodes(path, pairs, **names)
        with pytest.raises(InputError, match=sentence):
            loaded(JAT["swimmer-rollouts"], tmp_path)

    refused(r"Episode 1 has .*\(1000, 11\).*\(1000, 8\).*the right environment", published.episodes(11, 3))
    refused(
        "Cannot read .* as a Parquet file of episodes",
        published.episodes(8, 2),
        names=("observations", "actions"),
    )
    refused("needs 4,000 transitions, but .* has 3,999", published.episodes(8, 2, lengths=(3999,)))
    refused("has no transitions", [])
    pairs = published.episodes(8, 2)
    pairs[2][1][16, 1] = np.nan
    refused("Episode 3 has a value that is not finite, in transition 17", pairs)
    published.write_episodes(path, published.episodes(8, 2))
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(InputError, match=r"Cannot read .* as a Parquet file of episodes") as caught:
        loaded(JAT["swimmer-rollouts"], tmp_path)
    assert "\n" not in caught.value.message


def test_published_addresses_name_the_files_that_the_loader_finds(tmp_path):
    for entry in map(registry.dataset, mujoco.WIDTHS):
        (download,) = entry.downloads
        assert download.url.endswith(f"/{download.file}")
        path = tmp_path / download.file
        path.parent.mkdir()
        path.touch()
        assert list(entry.find(tmp_path, Options())) == [path]


# Gaussian


def test_gaussian_targets_have_the_prescribed_moments():
    problem = registry.dataset("gaussian").load((), Options())
    wanted, moments = gaussian.prescribe_moments(), problem.moments
    assert problem.kind == "GENERATED"
    np.testing.assert_array_equal(moments.count, wanted.count)
    np.testing.assert_allclose(moments.mean, wanted.mean, atol=1e-13)
    np.testing.assert_allclose(moments.covariance, wanted.covariance, atol=1e-13)
    np.testing.assert_allclose(predict(moments).relative_gap, predict(wanted).relative_gap, rtol=1e-10)
    for split in problem.test.values():
        assert not np.allclose(split.targets.mean(axis=0), 0, atol=1e-3)


def test_one_linear_map_learns_all_gaussian_targets():
    problem = registry.dataset("gaussian").load((), Options(seed=5))
    inputs, targets = pooled(problem.train, "inputs").astype(float), pooled(problem.train, "targets")
    assert inputs.shape == (3000, gaussian.WIDTH)
    learned = np.linalg.lstsq(inputs, targets, rcond=None)[0]
    fitted = pooled(problem.test, "inputs") @ learned
    np.testing.assert_allclose(fitted, pooled(problem.test, "targets"), atol=1e-5)
    assert (
        registry.dataset("gaussian").load((), Options(seed=6)).digest
        != problem.digest
        == registry.dataset("gaussian").load((), Options(seed=5)).digest
    )


def test_gaussian_takes_singular_covariances_and_refuses_a_narrow_input():
    flat = Moments([10, 20], np.zeros((2, 3)), np.stack([np.diag([1.0, 2.0, 0.0]), np.ones((3, 3))]))
    problem = gaussian.generate(flat, Options())
    for m, split in enumerate(problem.train.values()):
        np.testing.assert_allclose(np.cov(split.targets.T, bias=True), flat.covariance[m], atol=1e-12)
    with pytest.raises(InputError, match="3 targets need inputs of width 3"):
        gaussian.generate(flat, Options(), width=2)


# The files themselves


def test_the_published_beijing_tables(shared_data):
    entry = BEIJING
    problem = loaded(entry, shared_data)
    assert problem.kind == "REAL"
    assert problem.provenance["complete_rows"] == 404_671
    assert [split.inputs.shape for split in problem.train.values()] == [(2250, 8)] * 4
    check_projection(problem)
    (archive,) = entry.find(shared_data, Options())
    with tarfile.open(archive) as tar:
        columns = [*beijing.TARGETS, *beijing.INPUTS]
        frames = [pd.read_csv(tar.extractfile(member), usecols=columns) for member in tar.getmembers()]
    frame = pd.concat(frames)[columns].dropna()
    scale, mean = (pd.Series(problem.provenance[each])[list(beijing.TARGETS)] for each in ("scale", "mean"))
    rows = pooled(problem.train, "targets") * scale.to_numpy() + mean.to_numpy()
    assert {tuple(row) for row in rows.round(4)} <= {tuple(row) for row in frame.to_numpy()[:, :2].round(4)}
    # 9,000 of 404,671 rows: the sample's mean lies within 5 standard errors of the whole.
    assert (abs(mean - frame.mean()[list(mean.index)]) < 5 * scale / 9000**0.5).all()
    assert predict(problem.moments, Penalty(0.01, 0.01)).fully_active


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SIZES)
def test_the_generated_rollouts(shared_data, name, variant):
    problem = loaded(JAT[f"{name}-rollouts"], shared_data, Options(variant=variant))
    assert problem.kind == "GENERATED"
    assert [len(split) for split in problem.train.values()] == [1000] * 4
    assert sum(map(len, problem.test.values())) == 2000
    table = parquet.read_table(shared_data / f"mujoco_{name}_{variant}.parquet")
    acted = np.concatenate([np.array(episode) for episode in table["continuous_actions"].to_pylist()])
    assert acted.shape[1] == SIZES[name][1]
    moments = problem.moments
    np.testing.assert_allclose(moments.pooled.mean, acted[:4000].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(moments.pooled.covariance, np.cov(acted[:4000].T, bias=True), atol=1e-12)
    check_projection(problem)
    assert predict(moments, Penalty(0.01, 0.01)).fully_active
