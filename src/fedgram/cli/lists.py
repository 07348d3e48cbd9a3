"""Options that name several things: lists with commas, options given several times, and seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from fedgram._util.errors import InputError
from fedgram._util.text import between_commas

Seeds = Annotated[
    str, typer.Option(help="How many seeds (5 is 0 to 4), or which, with commas ('0,3', one is '3,').")
]


def parts(*texts: str) -> tuple[str, ...]:
    """What options name between commas, each once."""
    return tuple(dict.fromkeys(part for text in texts for part in between_commas(text)))


def seeds_of(text: str) -> tuple[int, ...]:
    """The seeds of '5' (0 to 4), '0,3' or '3,'."""
    try:
        numbers = tuple(int(part) for part in parts(text))
    except ValueError:
        numbers = ()  # so they are refused below
    which = "," in text
    if not numbers or min(numbers) < (0 if which else 1):
        raise InputError(
            f"--seeds is how many seeds, 1 or more, or which, with commas, like 0,3 or 3,; not '{text}'.",
            field="seeds",
        )
    return numbers if which else tuple(range(numbers[0]))
