"""Every exported name of the theory has an example, and its output is checked."""

import doctest
import importlib

import pytest

import fedgram

NAMES = [name for name in fedgram.__all__ if name not in fedgram._LAZY]
MODULES = sorted({getattr(fedgram, name).__module__ for name in NAMES})


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_the_printed_output(module):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_have_sections_and_an_example(name):
    public = getattr(fedgram, name)
    is_function = not isinstance(public, type)
    needed = ["Parameters", "Returns", "Raises", "Examples"] if is_function else ["Examples"]
    for section in needed:
        assert f"    {section}\n    {'-' * len(section)}\n" in public.__doc__
    assert ">>> " in public.__doc__
