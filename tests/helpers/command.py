"""Run the command line in this process."""

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from typing import NamedTuple
from unittest.mock import patch

import typer.main

from fedgram.cli import main

build_once = cache(typer.main.get_command)
"""Typer builds all commands from their signatures in every call, which takes longer than most commands."""


class Finished(NamedTuple):
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def fedgram(*arguments, cwd=None, columns=120, encoding="utf-8"):
    """Run `fedgram` with these arguments, and streams of an encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    with (
        chdir(cwd or os.getcwd()),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", ["fedgram", *map(str, arguments)]),
        patch.dict(os.environ, COLUMNS=str(columns)),
        patch.object(typer.main, "get_command", build_once),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return Finished(code, *(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))
