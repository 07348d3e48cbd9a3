"""Exceptions for invalid input and missed accuracy, and a type check."""

from __future__ import annotations


class InputError(ValueError):
    """Invalid input: the message says what is wrong, where, and how to fix it.

    Parameters
    ----------
    message
        At most two sentences for people.
    client, field
        The client and the input field at fault, for programs; None if there is none.

    Examples
    --------
    >>> import fedgram
    >>> try:
    ...     fedgram.Penalty(features=-1.0)
    ... except fedgram.InputError as error:
    ...     print(error.field, "|", error)
    lambda_h | features (lambda_h) must be a positive number, not -1.0.
    """

    def __init__(self, message: str, *, client: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.client = client
        self.field = field


class AccuracyError(ArithmeticError):
    """A computation stopped before it reached the accuracy that its result needs.

    Examples
    --------
    >>> import fedgram
    >>> issubclass(fedgram.AccuracyError, ArithmeticError)
    True
    """


def check_type(value: object, kind: type, caller: str, hint: str) -> None:
    """Raise InputError unless `value` is of a kind; `hint` is the sentence that says how to get one."""
    if not isinstance(value, kind):
        raise InputError(
            f"{caller} expects {kind.__name__}, got {type(value).__name__}. {hint}.",
            field=kind.__name__.lower(),
        )
