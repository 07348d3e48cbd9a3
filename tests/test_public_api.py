"""The public face: exported names, laziness, types of the installed wheel."""

import ast
import builtins
import doctest
import subprocess
import sys

import pytest

import fedgram


@pytest.mark.parametrize("name", fedgram.__all__)
def test_every_exported_name_exists(name):
    assert getattr(fedgram, name).__module__.startswith("fedgram.")


@pytest.mark.parametrize("name", fedgram.__all__)
def test_examples_import_what_they_use(name):
    """An example that is copied from `help` runs."""
    thing = getattr(fedgram, name)
    for each in (thing, *(getattr(thing, part) for part in vars(thing) if not part.startswith("_"))):
        examples = doctest.DocTestParser().get_examples(getattr(each, "__doc__", "") or "")
        nodes = list(ast.walk(ast.parse("".join(example.source for example in examples))))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        imported = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        stored |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
        assert {node.id for node in names} <= imported | stored | set(dir(builtins))


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
