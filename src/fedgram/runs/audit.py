"""Append-only audit log of a federation, each line chained to the one before.

Every line is a JSON object with "previous", the SHA-256 of the line before it (64 zeros in the first). A line
that was changed, removed or inserted breaks the chain at the next one. A line about an accepted reply has the
reply's hash and its signature by the key of the client's introduction.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgram._util.errors import InputError
from fedgram._util.files import parse_json
from fedgram.runs.signatures import can_verify, is_signed

AUDIT = "audit.jsonl"
FIRST = 64 * "0"
"""Value of "previous" in the first line."""
ACCEPTED, REFUSED = "accepted", "refused"
"""Outcomes of a reply."""


@dataclass
class AuditLog:
    """An audit log that one process appends to; every line is on disk before `append` returns."""

    path: Path
    last: str = FIRST

    @classmethod
    def open(cls, path: Path, anchor: str | None = None) -> AuditLog:
        """Verify an existing log and continue it; drop a last line that a crash cut short.

        `anchor` is as in `read_audit`.
        """
        log, is_cut = cls(path), False
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if is_cut := whole < len(content):
                os.truncate(path, whole)
        if path.exists() or anchor not in (None, FIRST):
            log.last = read_audit(path, anchor).last
        if is_cut:
            log.append("crash", reason="dropped an incomplete last line")
        return log

    def append(self, event: str, **values: Any) -> None:
        """Append a line; `values` are JSON values, and those that are None are left out."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        given = {name: value for name, value in values.items() if value is not None}
        entry = {"previous": self.last, "time": time, "event": event} | given
        line = json.dumps(entry).encode() + b"\n"
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            try:
                os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InputError(f"Cannot write '{self.path}': {error.strerror}.", field=str(self.path)) from None
        self.last = hash_line(line)


@dataclass(frozen=True)
class AuditSummary:
    """A verified audit log.

    `last` is the hash of the last line: note it elsewhere to detect a log that was replaced as a whole.
    `introductions` counts the accepted ones, `replies` (client, outcome) of all replies to later messages,
    and `refusals` lists what was refused. `signatures` counts the valid ones of introductions and replies; it
    is None if the library for them is not installed. A secure run logs `sums` instead of replies, and who
    dropped out of how many (`dropouts`).
    """

    path: Path
    lines: int
    last: str
    introductions: int = 0
    replies: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: tuple[dict[str, Any], ...] = ()
    suspended: dict[str, str] = field(default_factory=dict)
    signatures: int | None = None
    sums: int = 0
    dropouts: Counter[str] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """Convert to the JSON of `fedgram runs audit --json`."""
        by_client: dict[str, dict[str, int]] = {}
        for (client, outcome), number in sorted(self.replies.items()):
            by_client.setdefault(client, {ACCEPTED: 0, REFUSED: 0})[outcome] = number
        return {
            "path": str(self.path),
            "lines": self.lines,
            "last": self.last,
            "signatures": self.signatures,
            "introductions": self.introductions,
            "replies": by_client,
            "refusals": list(self.refusals),
            "suspended": self.suspended,
            "sums": self.sums,
            "dropouts": dict(sorted(self.dropouts.items())),
        }


def read_audit(path: Path, anchor: str | None = None) -> AuditSummary:
    """Verify an audit log and summarize it.

    Parameters
    ----------
    path : Path
        An `audit.jsonl` file.
    anchor : str, optional
        Hash of a line that the log must contain, noted when that line was its last.

    Raises
    ------
    InputError
        If a line is damaged, missing or not chained to the one before, or if a signature is not by the key
        of the client's last accepted introduction.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fedgram.runs.audit import AuditLog, read_audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "audit.jsonl")
    ...     log = AuditLog.open(path)
    ...     log.append("start", clients=3)
    ...     log.append("reply", client="oslo", outcome="accepted")
    ...     summary = read_audit(path, anchor=log.last)
    >>> summary.lines, summary.replies["oslo", "accepted"]
    (2, 1)
    """
    last, lines, introductions, sums, is_anchored = FIRST, 0, 0, 0, anchor in (None, FIRST)
    replies: Counter[tuple[str, str]] = Counter()
    dropouts: Counter[str] = Counter()
    refusals: list[dict[str, Any]] = []
    suspended: dict[str, str] = {}
    keys: dict[str, str] = {}
    signatures = 0 if can_verify() else None
    for line, entry in _read_lines(path):
        lines += 1
        if entry.get("previous") != last:
            raise _broken(path, f"line {lines} does not follow from the line before it")
        last = hash_line(line)
        is_anchored |= last == anchor
        client, event = str(entry.get("client")), entry.get("event")
        if event == "introduction" and entry.get("outcome") == ACCEPTED:
            keys[client] = str(entry.get("key"))
            introductions += 1
        if signatures is not None and "signature" in entry:
            if not is_signed(keys.get(client, ""), str(entry.get("reply")), str(entry["signature"])):
                raise _broken(path, f"the signature in line {lines} is not by the key of client '{client}'")
            signatures += 1
        if event == "reply":
            replies[client, str(entry.get("outcome"))] += 1
        if event == "sum":
            sums += 1
            dropouts.update(map(str, entry.get("dropped", ())))
        if entry.get("outcome") == REFUSED:
            refusals.append({key: value for key, value in entry.items() if key != "previous"})
        if event == "suspend":
            suspended[client] = str(entry.get("reason"))
        elif event == "readmit":
            suspended.pop(client, None)
    if not is_anchored:
        raise _broken(path, "lines are missing at its end")
    return AuditSummary(
        path, lines, last, introductions, replies, tuple(refusals), suspended, signatures, sums, dropouts
    )


def hash_line(line: bytes) -> str:
    """Return the SHA-256 of a line with its end."""
    return hashlib.sha256(line).hexdigest()


def _read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read '{path}': {error.strerror}.", field=str(path)) from None
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            entry = parse_json(line.decode())
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not line.endswith(b"\n"):
            raise _broken(path, f"line {number} is not a complete JSON object")
        yield line, entry


def _broken(path: Path, reason: str) -> InputError:
    return InputError(
        f"The audit log '{path}' was changed: {reason}. Restore it from a backup.", field=str(path)
    )
