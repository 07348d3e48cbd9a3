"""What the server and a client tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array as SentArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError

ARRAYS, WORDS, REFUSAL = "arrays", "words", "refusal"


@dataclass(frozen=True, eq=False)
class Payload:
    """Arrays in double precision, and words and numbers, each by name."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)

    def records(self) -> RecordDict:
        """As Flower sends it."""
        arrays = {name: SentArray(np.asarray(value, dtype=np.float64)) for name, value in self.arrays.items()}
        return RecordDict({ARRAYS: ArrayRecord(arrays), WORDS: ConfigRecord(dict(self.words))})

    @classmethod
    def from_records(cls, records: RecordDict) -> Payload:
        """What was sent."""
        try:
            arrays = {name: sent.numpy() for name, sent in records.array_records[ARRAYS].items()}
            return cls(arrays, dict(records.config_records[WORDS]))
        except KeyError:
            raise InputError(
                "A message does not hold what fedgram sends; let the server and all clients run the same "
                "version.",
                field="message",
            ) from None

    @classmethod
    def refusing(cls, reason: str) -> Payload:
        """An answer that says why there is none."""
        return cls(words={REFUSAL: reason})

    @property
    def refusal(self) -> str | None:
        """Why the other side could not answer."""
        return self.words.get(REFUSAL)
