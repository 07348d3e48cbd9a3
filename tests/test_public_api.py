"""The public face: exported names, laziness, types of the installed wheel."""

import subprocess
import sys

import pytest

import fedgram


@pytest.mark.parametrize("name", fedgram.__all__)
def test_every_exported_name_exists(name):
    assert getattr(fedgram, name).__module__.startswith("fedgram.")


def test_dir_shows_public_names_only():
    assert set(dir(fedgram)) == {*fedgram.__all__, "__version__"}


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedgram.nothing  # noqa: B018


@pytest.mark.parametrize("module", ["torch", "duckdb", "matplotlib", "rich", "pandas"])
def test_import_is_light(module):
    names = "fedgram.Problem; fedgram.Runs; fedgram.Advice; fedgram.read_site_problem"
    code = f"import sys, fedgram; {names}; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
