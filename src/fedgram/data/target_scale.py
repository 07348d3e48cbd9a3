"""Scales that convert standardized targets to their own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgram._util.arrays import Array
from fedgram.data.encoding import Encoding


def target_scale(provenance: Mapping[str, Any], targets: Sequence[str]) -> Array:
    """Return the standard deviations (C,) that the targets of a problem were divided by; ones if by none.

    Examples
    --------
    >>> target_scale({"mean_and_deviation": {"PM2.5": [80.0, 75.0]}}, ["PM2.5", "year"])
    array([75.,  1.])
    """
    if "encoding" in provenance:
        return Encoding.from_document(provenance["encoding"]).target_scale
    scales = {name: pair[1] for name, pair in provenance.get("mean_and_deviation", {}).items()}
    scales |= provenance.get("scale", {})  # of the paper's datasets
    return np.array([scales.get(name, 1.0) for name in targets])
