"""Hostile tables and documents: the right numbers, or one sentence that names the problem.

One case per attack of the list "tables, files and terminals"; conditions, archives and figures are in
`test_inputs`.
"""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgram import InputError
from fedgram._util.files import read_json
from fedgram.data.tables.read_moments import read_moments
from fedgram.theory.moments import Moments
from tests.helpers.command import fedgram

ROWS = "a,1,2\na,2,1\na,4,3\nb,1,5\nb,5,2\nb,3,3\n"
TABLE = f"site,y,z\n{ROWS}"


def read(folder: Path, content: str | bytes, targets=("y", "z"), name: str = "rows.csv") -> Moments:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return read_moments(str(path), client="site", targets=list(targets))


READ = {
    "BOM": f"\ufeff{TABLE}",
    "CRLF": TABLE.replace("\n", "\r\n"),
    "quotes": TABLE.replace("a,", '"a",'),
    "quotes in a name": TABLE.replace("a,", '"a ""x""",'),
    "HTML in a client": TABLE.replace("a,", "<script>alert(1)</script>,"),
}


@pytest.mark.parametrize("name", READ)
def test_odd_but_sound_table_is_read(tmp_path, name):
    moments = read(tmp_path, READ[name])
    assert moments.count.tolist() == [3, 3]
    np.testing.assert_allclose(moments.mean, [[7 / 3, 2], [3, 10 / 3]])


COLUMNS = ("a b", 'a"b', "a;b", "x); DROP TABLE data; --", "é世", "$x^{$", "<b>y</b>", "y,z", "'", "\\")


@pytest.mark.parametrize("column", COLUMNS)
def test_any_text_can_be_a_column(tmp_path, column):
    quoted = '"' + column.replace('"', '""') + '"'
    moments = read(tmp_path, f"site,{quoted},z\n{ROWS}", (column, "z"))
    assert moments.targets == (column, "z")
    np.testing.assert_allclose(moments.mean[:, 0], [7 / 3, 3])


REFUSED = {
    "Latin-1": (TABLE.replace("a,", "é,").encode("latin-1"), "it is not UTF-8 text"),
    "workbook": (b"PK\x03\x04\x14\x00\x08\x00\xff\xfe\x00", "it is an Excel workbook or a zip archive"),
    "lone surrogates": (TABLE.replace("a,", "\ud800,"), "it is not UTF-8 text"),
    "mixed types": (TABLE.replace("a,4", "a,four"), "'y' .*is not numeric: 1 value of text, first 'four'"),
    "duplicate columns": (TABLE.replace("y,z", "y,y"), "'y' matches several columns"),
    "header only": ("site,y,z\n", "No rows with a client"),
    "one row": ("site,y,z\na,1,2\n", "Client 'a' has 1 row, but it needs at least 3"),
    "huge integers": (TABLE.replace("a,4", f"a,{400 * '9'}"), "Client 'a' has an infinite value in 'y'"),
    "decimal commas": (TABLE.replace("a,4", 'a,"4,5"'), "first '4,5' in row 3. Write decimals with a point"),
    "a quote that is not closed": (TABLE.replace("a,4", '"a,4'), "Cannot read '.*rows.csv'"),
    "NaN as text": (TABLE.replace("a,4", "a,NaN"), "1 of 6 rows has a missing value in 'y'"),
    "inf as text": (TABLE.replace("a,4", "a,inf"), "Client 'a' has an infinite value in 'y'"),
    "an empty file": (b"", "rows.csv"),
    "binary": (bytes(range(256)), "rows.csv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_broken_table_is_refused(tmp_path, name):
    content, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        read(tmp_path, content)


def test_damaged_parquet_does_not_crash(tmp_path):
    """Parquet has no checksum of its values: a flip there changes a number, a flip elsewhere is refused."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], 50), "y": rng.standard_normal(100)})
    frame.to_parquet(tmp_path / "rows.parquet")
    content = (tmp_path / "rows.parquet").read_bytes()
    for place in rng.integers(4, len(content) - 8, size=8):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        with suppress(InputError):
            assert len(read(tmp_path, bytes(damaged), ["y"], "rows.parquet").count) >= 1


@pytest.mark.parametrize("kind", ["missing", "folder", "symlink loop", "/dev/full", "/dev/null"])
def test_path_that_is_no_table_is_refused(tmp_path, kind):
    path = tmp_path / "rows.csv"
    if kind == "folder":
        path.mkdir()
    elif kind == "symlink loop":
        path.symlink_to(path)
    with pytest.raises(InputError):
        read_moments(kind if kind.startswith("/dev") else str(path), client="site", targets=["y"])


MOMENTS = (
    '{"format": "fedgram-moments/1", "targets": ["y"], "clients": ['
    '{"name": "a", "count": COUNT, "mean": [0.0], "covariance": [[1.0]]},'
    ' {"name": "b", "count": 5, "mean": [1.0], "covariance": [[1.0]]}]}'
)
DOCUMENTS = {
    "duplicate keys": MOMENTS.replace("COUNT", '5, "count": 6'),
    "deep nesting": MOMENTS.replace("COUNT", 50_000 * "[" + 50_000 * "]"),
    "1e400": MOMENTS.replace("COUNT", "1e400"),
    "NaN literal": MOMENTS.replace("COUNT", "NaN"),
    "bool for number": MOMENTS.replace("COUNT", "true"),
    "thousands of digits": MOMENTS.replace("COUNT", 10_000 * "9"),
    "text for number": MOMENTS.replace("COUNT", '"5"'),
    "not an object": "[1, 2]",
    "cut": MOMENTS[:40],
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_broken_moments_file_ends_in_one_sentence(tmp_path, name):
    (tmp_path / "moments.json").write_text(DOCUMENTS[name])
    code, _, err = fedgram("predict", tmp_path / "moments.json")
    assert code == 2
    assert err.startswith("fedgram: ")
    assert err.count("\n") == 1


def test_sound_moments_file_is_read(tmp_path):
    (tmp_path / "moments.json").write_text(MOMENTS.replace("COUNT", "5"))
    assert fedgram("predict", tmp_path / "moments.json", "--json").returncode == 0
    assert read_json(tmp_path / "moments.json")["clients"][0]["count"] == 5


@pytest.mark.parametrize("kind", ["/dev/full", "read-only folder"])
def test_output_that_cannot_be_written_is_named(tmp_path, kind):
    (tmp_path / "rows.csv").write_text(TABLE)
    output = kind
    if kind == "read-only folder":
        (tmp_path / "closed").write_text("a file where a folder is needed")  # root may write to any folder
        output = tmp_path / "closed" / "moments.json"
    code, _, err = fedgram(
        "moments", tmp_path / "rows.csv", "--client", "site", "--targets", "y,z", "-o", output
    )
    assert code == 2
    assert "Traceback" not in err


def test_names_reach_json_unchanged(tmp_path):
    (tmp_path / "rows.csv").write_text(TABLE.replace("a,", "<b>$x^{$</b>,"))
    arguments = (tmp_path / "rows.csv", "--client", "site", "--targets", "y,z")
    document = json.loads(fedgram("predict", *arguments, "--json").stdout)
    assert "<b>$x^{$</b>" in json.dumps(document)
