"""How much memory a stack needs, before it is made, and how many runs fit at once."""

from __future__ import annotations
