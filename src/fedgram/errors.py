"""What can go wrong, said once: bad input, and a computation that fell short of its accuracy."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used: one sentence saying what is wrong, where, and what to do.

    `client` and `field` name the place when there is one; programs read them, people read the sentence.
    """

    def __init__(self, message: str, *, client: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.client = client
        self.field = field


class AccuracyError(ArithmeticError):
    """A computation that stopped before it reached its accuracy."""
