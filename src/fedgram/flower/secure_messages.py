"""Messages of secure sums: their kinds and formats, and bytes in arrays.

One sum takes two messages: clients send masked numbers (SUM), then shares of the masks' secrets (REVEAL).
Keys and shares for several sums are exchanged once per session (KEYS, SHARES). Bytes travel as arrays of
32-bit words, so that the checks of all arrays apply to them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedgram._util.arrays import Array
from fedgram.flower.messages import IN_ROUND, QUERY, Payload, RejectedReplyError, ReplyFormat, reply_format
from fedgram.runs.procedure import Procedure

INTRODUCE, KEYS, SHARES, REVEAL = (
    "query.secure",
    "query.secure_keys",
    "query.secure_shares",
    "query.secure_reveal",
)
SUM = "train.secure"
SECURE_KINDS = (INTRODUCE, KEYS, SHARES, SUM, REVEAL)
"""Introduce yourself without moments; send public keys; send encrypted shares of secrets; send masked
numbers; reveal shares."""

SCALES, ROUND, MOMENTS = "scales", "round", "moments"
TRAINED, EVALUATED = "trained", "evaluated"
TRIED, BLENDED, FINISHED = "tried", "blended", "finished"
"""Tasks of a sum: moments of all columns, a term of the barycenter, moments of targets; a trained return,
errors and sums of the averaged model; errors of strengths, comparisons with the models trained alone, test
errors of the chosen models."""

WORD_BYTES = 4


def secure_format(kind: str, procedure: Procedure, *, standardize: bool = False) -> ReplyFormat:
    """Return what the reply to a message contains.

    Axes: K public keys, M clients, L numbers of a sum, X words of encrypted shares, and those of FIXED_AXES.
    """
    return {
        INTRODUCE: ReplyFormat({}, reply_format(QUERY, procedure, standardize=standardize).metadata),
        KEYS: ReplyFormat({"keys": "K8", "keys_signature": "G"}, IN_ROUND),
        SHARES: ReplyFormat({"sealed": "MX"}, IN_ROUND),
        SUM: ReplyFormat({"masked": "L4"}, IN_ROUND),
        REVEAL: ReplyFormat({"shares": "M4"}, IN_ROUND),
    }[kind]


FIXED_AXES = {"4": 4, "8": 8, "G": 16}
"""Words of a share or number, of a key, and of a signature."""


def to_words(data: Iterable[bytes]) -> Array:
    """Convert n byte strings of equal length to words (n, words)."""
    return np.array([np.frombuffer(each, "<u4") for each in data], np.float64)


def from_words(words: Array) -> list[bytes]:
    """Convert words (n, words) to n byte strings."""
    return [row.astype("<u4").tobytes() for row in words]


def check_words(arrays: Iterable[Array]) -> None:
    """Raise RejectedReplyError unless arrays have 32-bit numbers."""
    for words in arrays:
        if not ((words >= 0) & (words < 2**32) & (words == np.floor(words))).all():
            raise RejectedReplyError("it has words that are not 32-bit numbers")


def read_sealed(request: Payload) -> list[bytes]:
    """Return the encrypted shares in a request."""
    return from_words(request.arrays["sealed"])
