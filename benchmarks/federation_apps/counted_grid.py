"""Count the bytes of all messages that pass through a Flower grid."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects


class CountedGrid:
    """A grid whose `sent` and `received` are bytes of content, as Flower serializes it."""

    def __init__(self, grid: Any) -> None:
        self.grid, self.sent, self.received = grid, 0, 0
        self.marks: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages."""
        messages = list(messages)
        self.sent += sum(map(size, messages))
        return list(self.grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived."""
        replies = list(self.grid.pull_messages(message_ids))
        self.received += sum(map(size, replies))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies."""
        messages = list(messages)
        self.sent += sum(map(size, messages))
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        self.received += sum(map(size, replies))
        return replies

    def mark(self) -> None:
        """Note the time and the bytes so far, at the end of a round."""
        self.marks.append((time.perf_counter(), self.sent + self.received))

    def write(self, path: str) -> None:
        """Write the seconds and the bytes of every round between two marks."""
        seconds, sizes = (
            [after - before for before, after in pairwise(each)] for each in zip(*self.marks, strict=True)
        )
        Path(path).write_text(json.dumps({"seconds": seconds, "bytes": sizes}), encoding="utf-8")


def size(message: Message) -> int:
    if not message.has_content():
        return 0
    return sum(len(each.deflate()) for each in get_all_nested_objects(message.content).values())
