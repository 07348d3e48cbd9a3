"""Hostile names, conditions, archives and documents end in one sentence, or in an escaped label."""

import gzip
import io
import json
import lzma
import zipfile

import numpy as np
import pandas as pd
import pytest

from fedgram import InputError, Moments, explain, predict
from fedgram._util.files import read_json
from fedgram._util.text import escape_text, is_valid_name
from fedgram.data.datasets import archives
from fedgram.data.datasets.archives import check_archive
from fedgram.data.split import Split
from fedgram.data.tables.read_moments import read_moments
from fedgram.display.prediction_figure import draw_prediction
from fedgram.flower import Site

NAMES = ["$x^{$", "\ud800", "a\nb", "\\frac", "$", "%s", "<script>"]


def test_text_of_others_is_escaped_and_cut():
    assert escape_text("\x1b[31mred\x1b[0m\n\ud800é") == r"\x1b[31mred\x1b[0m\n\ud800é"
    assert escape_text("x" * 1000, 10) == "xxxxxxxxxx..."


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "\x1b[2J", "\u202egnp", "\ud800", "x" * 201, 7, None])
def test_site_needs_a_printable_name(name):
    rows = Split(np.ones((4, 2)), np.ones((4, 1)))
    assert not is_valid_name(name)
    with pytest.raises(InputError, match=r"Invalid site name: .*Use 1 to 200 printable characters"):
        Site(name, rows)


@pytest.mark.parametrize("targets", [2, 4])
def test_any_name_can_be_a_label_of_a_figure(tmp_path, targets):
    rng = np.random.default_rng(0)
    rows = {name: rng.standard_normal((30, targets)) for name in NAMES[:3]}
    prediction = predict(Moments.from_arrays(rows, target_names=NAMES[:targets]))
    draw_prediction(prediction, explain(prediction), tmp_path / "a.svg", "data $x^{$ \ud800")
    assert "$x^{$" in (tmp_path / "a.svg").read_text()


DUPLICATES = (
    '{"a": 1, "a": 2}',
    '{"clients": [{"name": "x", "count": 3, "count": 4}]}',
    '{"b": {"é": 1, "\\u00e9": 2}}',
)


@pytest.mark.parametrize("text", DUPLICATES)
def test_duplicate_keys_are_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.json' has the key '.*' twice in one object\. Remove one"):
        read_json(tmp_path / "a.json")


@pytest.fixture
def table(tmp_path):
    (tmp_path / "secret.txt").write_text("the secret")
    (tmp_path / "rows [1].csv").write_text("site,y\na,1\na,2\na,4\nb,1\nb,5\nb,3\n")
    return tmp_path / "rows [1].csv"


CONDITIONS = [
    "(SELECT content FROM read_text('{0}/secret.txt')) LIKE 'the%'",
    "(SELECT count(*) FROM read_csv('{0}/secret.txt', header = false)) = 1",
    "(SELECT count(*) FROM glob('{0}/*')) > 0",
    "(SELECT count(*) FROM '{0}/rows*') > 0",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_condition_cannot_read_other_files(table, condition):
    where = condition.format(table.parent)
    with pytest.raises(InputError, match=r"Invalid condition .*(Cannot access|does not exist)"):
        read_moments(str(table), client="site", targets="y", where=where)
    frame = pd.read_csv(table)
    with pytest.raises(InputError, match=r"Invalid condition .*(Cannot access|does not exist)"):
        read_moments(frame, client="site", targets="y", where=where)


def test_condition_reads_the_given_files(table):
    moments = read_moments([str(table)], client="site", targets="y", where="y < 5")
    assert moments.count.tolist() == [3, 2]


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    zeros = bytes(3_000_000)
    write_zip(tmp_path / "bomb.zip", {"rows.csv": zeros})
    inner = io.BytesIO((tmp_path / "bomb.zip").read_bytes())
    write_zip(tmp_path / "nested.zip", {"inner.zip": inner.getvalue()})
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(zeros, 1))
    (tmp_path / "bomb.tar.xz").write_bytes(lzma.compress(zeros, preset=0))
    for name in ("bomb.zip", "nested.zip", "bomb.tar.gz", "bomb.tar.xz"):
        with pytest.raises(InputError, match=rf"{name}' unpacks to more than .* bytes, 200 times its size"):
            check_archive(tmp_path / name)


def test_honest_and_damaged_archives_pass(tmp_path):
    write_zip(tmp_path / "rows.zip", {"rows.csv": np.random.default_rng(0).bytes(10_000)})
    (tmp_path / "cut.zip").write_bytes(b"PK cut")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"rows" * 100)[:20])
    for path in tmp_path.iterdir():
        check_archive(path)


def test_damaged_numbers_of_a_run_are_named(tmp_path, capsys):
    from fedgram.cli import runs
    from fedgram.runs.tensor_files import read_arrays, write_arrays
    from tests.helpers.scripted_sites import ScriptedGrid

    run = ScriptedGrid(tmp_path, rounds=1).serve()
    arrays = read_arrays(run.round_path(1))
    document = json.loads((run.folder / "manifest.json").read_text())
    for key in ("files", "sha256"):  # as of a version without checksums
        del document[key]
    (run.folder / "manifest.json").write_text(json.dumps(document))
    for head in (np.full((2, 4), np.nan), np.ones((3, 4)), np.ones((2, 9))):
        write_arrays(run.round_path(1), arrays | {"head": head})
        with pytest.raises(InputError, match=r"The run in '.*' is damaged: .*fedgram runs check"):
            runs.show(tmp_path, as_json=True)
