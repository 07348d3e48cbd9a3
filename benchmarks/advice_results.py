"""Tables of `advice.py`."""

from typing import Any


def tables(results: Any) -> dict[str, str]:
    return {}
