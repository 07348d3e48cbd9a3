"""Payloads of server and clients, what each kind of message contains, and their transport.

`reply_format` is the one table of what a client may send. The server decodes nothing that is not in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, get_args

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError
from fedgram._util.text import LONGEST_NAME, escape_text, is_valid_name
from fedgram.runs.advice import Alone
from fedgram.runs.joining import JOINING
from fedgram.runs.procedure import BIAS_RULES, Procedure
from fedgram.runs.tensor_files import hash_arrays
from fedgram.theory.moment_head import FeatureSums
from fedgram.theory.own_heads import NOISE_RATIOS

ARRAYS, METADATA, ERROR, SIGNATURE = "arrays", "metadata", "error", "signature"

LARGEST = 1e100
"""Largest absolute value of a number in a reply, so that products of three stay finite."""
LONGEST_HEADER = 1024
"""Bytes that NumPy's format may add to the numbers of an array."""
SHORTEST_PAUSE, PAUSE_SHARE, LONGEST_PAUSE = 0.2, 0.1, 3.0
"""Seconds between two looks for replies: a share of the time that was waited so far, within limits."""

log = logging.getLogger("flwr")  # `flwr run --stream` shows this logger


@dataclass(frozen=True)
class ReplyFormat:
    """Arrays and metadata of a kind of reply, all of them required.

    arrays: shapes in letters, C targets, I inputs, P features, D backbone outputs, S backbone parameters, A
    methods to work alone, B bias rules, R noise ratios, Z numbers of a triangle of sums. metadata:
    types. Arrays in `may_be_nan` may have NaN for what was not measured.
    """

    arrays: Mapping[str, str]
    metadata: Mapping[str, type]
    may_be_nan: frozenset[str] = frozenset()


IDENTITY: dict[str, type] = {"client": str, "key": str, "nonce": str, "rows": int, "fingerprint": str}
"""Metadata that every reply has: who sends it, which request it answers, and which rows it comes from."""
IN_ROUND: dict[str, type] = IDENTITY | {"round": int}
"""Metadata of all replies after the introduction."""

QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
BLEND, FINISH = "evaluate.blend", "evaluate.finish"
KINDS = (QUERY, TRAIN, EVALUATE, BLEND, FINISH)
"""Flower's type of each message: introduce yourself; train a round; evaluate the average; compare with the
model trained alone; keep the chosen model."""

HEAD: dict[str, str] = {"head": "CP", "bias": "C", "own_bias": "C", "centered_bias": "C"}
BACKBONE: dict[str, str] = {"layer_weight": "PD", "layer_bias": "P", "backbone": "S"}
INPUT_MOMENTS: dict[str, str] = {"input_mean": "I", "input_variance": "I"}
"""Arrays of an introduction from which the server standardizes inputs."""
TRAINING_SUMS, VALIDATION_SUMS = SUMS = ("training_sums", "validation_sums")
"""Triangles of `FeatureSums` over training and over validation rows: a client's in a reply, the totals of all
clients in a request."""
TRIAL, PRIOR, OWN_RATIO = "trial", "prior", "own_ratio"
"""Arrays of requests: chosen strengths, prior of the shares, index of the noise ratio of own heads."""
BLENDS = ("errors", "difference", "agreement")
"""Arrays of a comparison with the model trained alone, for each noise ratio of its head."""
ALONE_ERRORS, ALONE_METHOD = "alone_errors", "alone_method"
"""Squared errors on test rows without the other sites, by method; index of the method to compare with."""
METHODS: tuple[Alone, ...] = get_args(Alone)
"""Methods to work alone, in the order of these errors."""


def averaged_arrays(procedure: Procedure) -> dict[str, str]:
    """Return the arrays that clients of a procedure return for averaging, with their shapes."""
    if procedure.local:
        return {}
    return HEAD | (BACKBONE if procedure.full_model else {})


def reply_format(kind: str, procedure: Procedure, *, standardize: bool = False) -> ReplyFormat:
    """Return what the reply to each type of message contains."""
    return {
        QUERY: lambda _: _query_format(standardize),
        TRAIN: _train_format,
        EVALUATE: _evaluate_format,
        BLEND: lambda _: ReplyFormat({**dict.fromkeys(BLENDS, "R"), ALONE_ERRORS: "A"}, IN_ROUND),
        FINISH: _finish_format,
    }[kind](procedure)


def _query_format(standardize: bool) -> ReplyFormat:
    network: dict[str, type] = {"parameters": int, "network": str, "width": int, "backbone_size": int}
    rows: dict[str, type] = {"version": str, "test_rows": int, "validation_rows": int, "targets": list}
    columns: dict[str, type] = {"inputs": int} if standardize else {}
    moments = {"own_mean": "C", "own_covariance": "CC"} | (INPUT_MOMENTS if standardize else {})
    return ReplyFormat(moments, IDENTITY | rows | network | columns)


def _train_format(procedure: Procedure) -> ReplyFormat:
    measured = dict.fromkeys(("local_objective", "clipped", "loss", "diverged"), "")
    alone = {"local_error": ""} if procedure.trains_alone else {}
    return ReplyFormat(
        averaged_arrays(procedure) | measured | alone,
        IN_ROUND | {"after": int},
        may_be_nan=frozenset({"loss"}),  # of a diverged network
    )


def _evaluate_format(procedure: Procedure) -> ReplyFormat:
    measured = {"objective": "", "train_mse": "B", "test_mse": "B"}
    validation = {"validation_error": ""} if not procedure.local else {}
    if procedure.moment_head:
        validation = dict.fromkeys(SUMS, "Z")
    return ReplyFormat(
        measured | validation,
        IN_ROUND,
        may_be_nan=frozenset({"test_mse"}),  # without test rows
    )


def _finish_format(procedure: Procedure) -> ReplyFormat:
    alone = dict.fromkeys(("local_share", *JOINING), "") if procedure.blended else {}
    may_be_nan = frozenset({"test_mse", *JOINING})  # without test rows, or with few
    return ReplyFormat({"test_mse": ""} | alone, IN_ROUND | {"chosen": int}, may_be_nan)


def name_sums(training: FeatureSums, validation: FeatureSums) -> dict[str, Array]:
    """Return these sums as named arrays."""
    return {name: sums.to_triangle() for name, sums in zip(SUMS, (training, validation), strict=True)}


def read_sums(arrays: Mapping[str, Array], targets: int) -> tuple[FeatureSums, FeatureSums]:
    """Return sums over training and over validation rows from named arrays."""
    training, validation = (FeatureSums.from_triangle(arrays[name], targets) for name in SUMS)
    return training, validation


class RejectedReplyError(Exception):
    """A reply that must not count; the text says why."""


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
        """Read Flower records that `to_records` wrote, from a trusted sender."""
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

    @property
    def round(self) -> dict[str, int]:
        """The round of a request, as metadata of its reply."""
        return {"round": int(self.metadata["round"])}

    def digest(self) -> str:
        """Hash everything except the signature."""
        signed = {name: value for name, value in self.metadata.items() if name != SIGNATURE}
        arrays = {name: np.asarray(value, np.float64) for name, value in self.arrays.items()}
        return hash_arrays(arrays, signed)


def complete_axes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Add the lengths of other axes.

    These are methods to work alone (A), rules of biases (B), noise ratios (R) and numbers of a triangle (Z).
    """
    size = 1 + sizes.get("D", 0) + sizes.get("C", 0)
    lengths = {"A": len(METHODS), "B": len(BIAS_RULES), "R": len(NOISE_RATIOS), "Z": size * (size + 1) // 2}
    return {**sizes, **lengths}


def read_reply(records: RecordDict, expected: ReplyFormat, sizes: Mapping[str, int]) -> Payload:
    """Read a reply from an untrusted client; raise RejectedReplyError unless it has the expected format.

    `sizes` has the lengths of the axes; an introduction brings its own C and I. An error that the client
    reports becomes a payload with its reason, escaped.
    """
    try:
        given = records.array_records[ARRAYS]
        metadata: dict[str, Any] = dict(records.config_records[METADATA])
    except KeyError as error:
        raise RejectedReplyError(f"it has no record {error} of fedgram") from None
    if ERROR in metadata:
        return Payload.from_error(escape_text(str(metadata[ERROR])))
    types = {**expected.metadata, SIGNATURE: str}
    _check_names("value", metadata, types)
    for name, needed in types.items():
        _check_metadata(name, metadata[name], needed)
    _check_names("array", given, expected.arrays)
    lengths = complete_axes(sizes)
    if "targets" in metadata:
        lengths["C"] = len(metadata["targets"])
    if "inputs" in metadata:
        lengths["I"] = metadata["inputs"]
    arrays = {
        name: _decode(name, given[name], tuple(lengths[axis] for axis in axes), name in expected.may_be_nan)
        for name, axes in expected.arrays.items()
    }
    return Payload(arrays, metadata)


def _check_names(what: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if missing := [name for name in expected if name not in given]:
        raise RejectedReplyError(f"it lacks the {what} '{missing[0]}'")
    if extra := [name for name in given if name not in expected]:
        raise RejectedReplyError(f"it has an unexpected {what} '{escape_text(extra[0], LONGEST_NAME)}'")


def _check_metadata(name: str, value: Any, needed: type) -> None:
    if type(value) is not needed:  # excludes bool for int
        raise RejectedReplyError(f"'{name}' is not of type {needed.__name__}")
    texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if not all(is_valid_name(text) for text in texts):
        raise RejectedReplyError(f"'{name}' is not printable text of 1 to {LONGEST_NAME} characters")
    if isinstance(value, int) and not 0 <= value < 2**53:
        raise RejectedReplyError(f"'{name}' is out of range")


def _decode(name: str, array: FlowerArray, shape: tuple[int, ...], may_be_nan: bool) -> Array:
    """Decode an array of this shape; its header is checked before any memory is allocated for it."""
    size = 8 * int(np.prod(shape, dtype=np.int64))
    try:
        header = BytesIO(array.data)
        version = np.lib.format.read_magic(header)
        found, _, dtype = np.lib.format.read_array_header_1_0(header)
        is_float = version == (1, 0) and dtype == np.float64
        if not is_float or found != shape or len(array.data) > size + LONGEST_HEADER:
            raise RejectedReplyError(f"'{name}' is not a float64 array of shape {shape}")
        values: Array = np.ascontiguousarray(array.numpy()).reshape(shape)
    except (ValueError, TypeError, OSError, EOFError):
        raise RejectedReplyError(f"'{name}' is not a NumPy array") from None
    known = ~np.isnan(values) if may_be_nan else np.full(shape, True)
    if not np.isfinite(values[known]).all():
        raise RejectedReplyError(f"'{name}' has a value that is not finite")
    if np.abs(values[known]).max(initial=0.0) > LARGEST:
        raise RejectedReplyError(f"'{name}' has a value above {LARGEST:g}")
    return values


@dataclass(frozen=True)
class GridTransport:
    """Send payloads over a Flower grid; `reply_timeout` is in seconds."""

    grid: Grid
    reply_timeout: float

    def node_ids(self) -> Sequence[int]:
        """List the connected nodes."""
        return list(self.grid.get_node_ids())

    def send(self, message_type: str, payloads: Mapping[int, Payload]) -> dict[int, RecordDict]:
        """Send one payload per node; return what arrives in time, unchecked, in the order of the nodes."""
        messages = [
            Message(payload.to_records(), dst_node_id=node, message_type=message_type, ttl=self.reply_timeout)
            for node, payload in payloads.items()
        ]
        replies = {}
        for reply in self._exchange(messages) if messages else ():
            if reply.has_error():  # its source may be the SuperLink instead of the node
                log.warning("A node failed: %s", escape_text(str(reply.error.reason)))
            elif reply.metadata.src_node_id in payloads:
                replies[reply.metadata.src_node_id] = reply.content
        return {node: replies[node] for node in payloads if node in replies}

    def _exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Send messages and yield the replies that arrive in time.

        `Grid.send_and_receive` looks for replies every three seconds, but many replies take less.
        """
        waiting, started = dict.fromkeys(self.grid.push_messages(messages)), time.monotonic()
        while True:
            for reply in self.grid.pull_messages(tuple(waiting)):
                waiting.pop(reply.metadata.reply_to_message_id, None)
                yield reply
            waited = time.monotonic() - started
            if not waiting or waited >= self.reply_timeout:
                return
            time.sleep(min(SHORTEST_PAUSE + PAUSE_SHARE * waited, LONGEST_PAUSE, self.reply_timeout - waited))
