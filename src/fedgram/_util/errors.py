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


def check_type(value: object, kind: type, made: str) -> None:
    """Refuse what is not of a kind; made says how one comes by it."""
    if not isinstance(value, kind):
        raise InputError(
            f"This takes a {kind.__name__}, not {type(value).__name__}: {made}.", field=kind.__name__.lower()
        )


class AccuracyError(ArithmeticError):
    """A computation that stopped before it reached its accuracy."""
