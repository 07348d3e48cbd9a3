"""Let streams of any encoding print our characters."""

from __future__ import annotations

import codecs
from typing import Any

# What a stream prints instead of a character that its encoding lacks; other characters become \x.. or \u....
REPLACEMENTS = {
    "⋆": "*", "²": "^2", "±": "+-", "λ": "lambda", "ρ": "rho", "γ": "gamma", "δ": "delta", "µ": "u", "μ": "u",
    "·": "-", "…": "...", "–": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "─": "-", "━": "-", "‖": "||",
    "≼": "<=", "Σ": "sum", "√": "sqrt ", "η": "eta",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
}  # fmt: skip

HANDLER = "fedgram"
"""Name of the error handler of encodings."""


def accept_all_characters(*streams: Any) -> None:
    """Replace characters that a stream's encoding lacks, instead of raising UnicodeEncodeError."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=HANDLER)


def replace_missing(text: str, encoding: str) -> str:
    """Replace the characters of a text that an encoding lacks.

    Examples
    --------
    >>> replace_missing("G_⋆, R² ≥ 0.5 ± 0.1, 北", "ascii")
    'G_*, R^2 >= 0.5 +- 0.1, \\\\u5317'
    """
    return text.encode(encoding, HANDLER).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    escaped = (each.encode("ascii", "backslashreplace").decode() for each in missing)
    replaced = (REPLACEMENTS.get(each, other) for each, other in zip(missing, escaped, strict=True))
    return "".join(replaced), error.end


codecs.register_error(HANDLER, _replace)
