"""Import the libraries of extras."""

from __future__ import annotations

from typing import Any

from fedgram._util.errors import InputError


def import_optional(module: str, message: str, field: str) -> Any:
    """Import a library and return its top package, as `import module` does.

    The InputError for a missing library has this message, which should say how to install it, and this field.
    """
    try:
        return __import__(module)
    except ImportError:
        raise InputError(message, field=field) from None
