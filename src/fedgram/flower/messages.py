"""Payloads of server and clients, and their transport over a Flower grid."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError

ARRAYS, METADATA, ERROR = "arrays", "metadata", "error"

log = logging.getLogger("flwr")  # `flwr run --stream` shows this logger


@dataclass(frozen=True, eq=False)
class Payload:
    """Named float64 arrays, and named strings and numbers."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_records(self) -> RecordDict:
        """Convert to Flower records."""
        arrays = {name: FlowerArray(np.asarray(value, np.float64)) for name, value in self.arrays.items()}
        return RecordDict({ARRAYS: ArrayRecord(arrays), METADATA: ConfigRecord(dict(self.metadata))})

    @classmethod
    def from_records(cls, records: RecordDict) -> Payload:
        """Read Flower records that `to_records` wrote."""
        try:
            arrays = {name: array.numpy() for name, array in records.array_records[ARRAYS].items()}
            return cls(arrays, dict(records.config_records[METADATA]))
        except KeyError as error:
            raise InputError(
                f"Message without fedgram record: {error}. Install the same fedgram version on the server "
                "and all clients.",
                field="message",
            ) from None

    @classmethod
    def from_error(cls, reason: str) -> Payload:
        """Create a reply that reports a failure."""
        return cls(metadata={ERROR: reason})

    @property
    def error(self) -> str | None:
        """The reason for a failure, if the sender reports one."""
        return self.metadata.get(ERROR)


@dataclass(frozen=True)
class GridTransport:
    """Send payloads over a Flower grid; `reply_timeout` is in seconds."""

    grid: Grid
    reply_timeout: float

    def node_ids(self) -> Sequence[int]:
        """List the connected nodes."""
        return list(self.grid.get_node_ids())

    def send(self, message_type: str, payloads: Mapping[int, Payload]) -> dict[int, Payload]:
        """Send one payload per node and return the replies that arrive in time, by node."""
        messages = [
            Message(payload.to_records(), dst_node_id=node, message_type=message_type, ttl=self.reply_timeout)
            for node, payload in payloads.items()
        ]
        replies = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.reply_timeout) if messages else ():
            if reply.has_error():  # its source may be the SuperLink instead of the node
                log.warning("A node failed: %s", reply.error.reason)
            else:
                replies[reply.metadata.src_node_id] = Payload.from_records(reply.content)
        return replies
