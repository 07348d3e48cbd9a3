"""State what validation rows chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALIDATED = ("round", "ridge", "intercept", "deviation", "local_ridge", "local_share")
"""What validation rows choose, by its name in an account."""


def describe_choice(chosen: Mapping[str, Any]) -> str:
    """State what validation rows chose for all clients; None is a site effect that is off.

    Examples
    --------
    >>> describe_choice({"round": 3, "ridge": 0.1, "intercept": None, "local_share": [0.5, 0.9]})
    'Chosen on validation rows: round 3, ridge 0.1, intercept off.'
    """
    common = {name: chosen[name] for name in VALIDATED if not isinstance(chosen.get(name, []), list)}
    values = {name: "off" if each is None else f"{each:.3g}" for name, each in common.items()}
    shown = ", ".join(f"{name} {value}" for name, value in values.items())
    return "Chosen on validation rows: " + (shown or "each client's own round") + "."
