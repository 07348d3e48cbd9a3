"""Tables in narrow terminals and in pipes."""

import io
import re
from collections import Counter

import numpy as np
import pytest

from fedgram import Moments
from fedgram.display.console import EscapingConsole, make_console, plain_table, print_table
from tests.helpers.command import fedgram

NAMES = ["Zürich University Hospital", "Oslo", "Nongzhanguan"]
NUMBERS = ["-0.000113", "1,095", "5.55e-01 ± 1e-02", "-37 % to +1,127 %"]


def printed(width, indent=0):
    console = EscapingConsole(file=io.StringIO(), width=width)
    table = plain_table()
    for heading in ("site", "procedure"):
        table.add_column(heading)
    for number in range(len(NUMBERS)):
        table.add_column(f"concentration_of_{number} (µg/m³)", justify="right")
    for name in NAMES:
        table.add_row(name, "full-model+moment-head", *NUMBERS)
    print_table(console, table, indent)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 20, 40, 80, 120, 500])
def test_a_table_cuts_nothing(width):
    text = "\n".join(printed(width))
    assert "…" not in text
    for number in NUMBERS:
        assert text.count(number) == len(NAMES)
    whole, found = (Counter(re.sub(r"[\s─]", "", each)) for each in ("\n".join(printed(500)), text))
    assert whole <= found  # names are there again where columns follow below


@pytest.mark.parametrize("indent", [0, 2])
def test_a_table_is_no_wider_than_a_terminal_that_has_room_for_its_numbers(indent):
    lines = printed(110, indent)
    assert max(map(len, lines)) <= 110
    assert all(line.startswith(" " * indent) for line in lines)


def test_words_stay_whole_where_there_is_room():
    natural = max(len(line) for line in printed(500))
    words, narrower = (set(re.findall(r"[^\s─]+", " ".join(printed(width)))) for width in (500, natural - 20))
    assert narrower == words


def test_a_file_has_every_number_of_many_targets(tmp_path):
    rng = np.random.default_rng(0)
    targets = [f"concentration_of_metal_{number:02}" for number in range(16)]
    rows = [rng.standard_normal((60, 16)) * np.geomspace(1, 1e6, 16) for _ in range(3)]
    Moments.from_arrays(rows, target_names=targets).save(tmp_path / "m.json")
    result = fedgram("predict", tmp_path / "m.json")
    assert result.returncode == 0, result.stderr
    assert "…" not in result.stdout
    # sixteen numbers of each target in both Gram matrices
    rows = re.findall(r"^ +concentration_of_metal_\d\d((?: +-?\d[\d.e+-]*)+) *$", result.stdout, re.MULTILINE)
    assert sum(len(row.split()) for row in rows) == 2 * len(targets) ** 2
    assert make_console().width == 200
    assert max(map(len, re.findall(r"^ .*", result.stdout, re.MULTILINE))) <= 200


@pytest.mark.parametrize("width", [80, 200])
def test_columns_without_room_follow_below_with_the_names_of_their_rows(width):
    console = EscapingConsole(file=io.StringIO(), width=width)
    table = plain_table(title="Errors", keys=2)
    for heading in ("site", "target"):
        table.add_column(heading)
    for number in range(30):
        table.add_column(f"error {number}", justify="right")
    for name in NAMES:
        table.add_row(name, "PM2.5", *(f"{number}.125" for number in range(30)))
    print_table(console, table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("Errors" in line for line in lines) == 1
    rows = [line.split() for line in lines if line.startswith(" Oslo")]
    assert len(rows) > 1
    assert all(row[:2] == ["Oslo", "PM2.5"] for row in rows)
    assert [cell for row in rows for cell in row[2:]] == [f"{number}.125" for number in range(30)]
