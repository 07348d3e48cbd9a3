"""Three sites that reply without training: honest and signed payloads, which a test may change."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message

from fedgram import Moments, Penalty
from fedgram._util.version import __version__
from fedgram.flower.config import FederationConfig
from fedgram.flower.identity import SiteKey
from fedgram.flower.messages import SIGNATURE, GridTransport, Payload
from fedgram.flower.server import run_server
from fedgram.theory.geometry.psd import closest_factor
from fedgram.theory.predict import phi, profiled_objective
from tests.helpers.flower_grid import MemoryGrid

SITES = ("coast", "ridge", "valley")
FEATURES = 4

NAN = lambda value: np.full_like(value, np.nan)  # noqa: E731

Change = Callable[[Payload], Payload]


def targets() -> dict[str, np.ndarray]:
    """Return target rows (80, 2) of each site."""
    rng = np.random.default_rng(0)
    mixing = {name: np.eye(2) + 0.2 * rng.standard_normal((2, 2)) for name in SITES}
    return {name: rng.standard_normal((80, 2)) @ mixing[name] + 0.3 * m for m, name in enumerate(SITES)}


@dataclass
class ScriptedSite:
    """A site whose network fits every target: it returns the optimal head closest to the broadcast.

    changes: functions of an unsigned payload by kind of message; unsigned: functions of a signed one.
    """

    name: str
    rows: np.ndarray
    changes: dict[str, Change] = field(default_factory=dict)
    unsigned: dict[str, Change] = field(default_factory=dict)
    key: SiteKey = field(default_factory=lambda: SiteKey(Ed25519PrivateKey.generate()))

    def reply(self, kind: str, request: Payload) -> Payload:
        """Answer a message."""
        honest = {"query": self._describe, "train": self._train, "evaluate": self._evaluate}[kind](request)
        identity = {
            "client": self.name, "key": self.key.public, "nonce": request.metadata["nonce"], "rows": 80,
            "fingerprint": f"rows of {self.name}",
        }  # fmt: skip
        payload = replace(honest, metadata={**honest.metadata, **identity})
        signed = self.key.sign(self.changes.get(kind, lambda payload: payload)(payload))
        return self.unsigned.get(kind, lambda payload: payload)(signed)

    @property
    def moments(self) -> Moments:
        """Target moments."""
        return Moments.from_arrays({self.name: self.rows})

    def _describe(self, request: Payload) -> Payload:
        metadata = {
            "version": __version__, "test_rows": 0, "validation_rows": 0, "targets": ["y1", "y2"],
            "parameters": 7, "network": "a0", "width": 3, "backbone_size": 4,
        }  # fmt: skip
        moments = self.moments
        return Payload({"own_mean": moments.mean[0], "own_covariance": moments.covariance[0]}, metadata)

    def _train(self, request: Payload) -> Payload:
        moments, number = self.moments, request.metadata["round"]
        head = closest_factor(request.arrays["head"], phi(moments.covariance[0], Penalty()))
        objective = profiled_objective(head, moments.covariance[0], Penalty())
        scalars = {"local_objective": objective, "clipped": 0.0, "loss": objective, "diverged": 0.0}
        biases = dict.fromkeys(("bias", "own_bias", "centered_bias"), moments.mean[0])
        return Payload({"head": head, **biases, **scalars}, {"round": number, "after": number - 1})

    def _evaluate(self, request: Payload) -> Payload:
        objective = profiled_objective(request.arrays["head"], self.moments.covariance[0], Penalty()) + 0.1
        arrays = {"objective": objective, "train_mse": np.ones(3), "test_mse": np.full(3, np.nan)}
        arrays["validation_error"] = np.zeros(())
        return Payload(arrays, {"round": request.metadata["round"]})


class ScriptedGrid(MemoryGrid):
    """A grid of scripted sites on nodes 11, 12 and 13; `sites` by node may change during a run."""

    def __init__(self, folder: Path, silent=None, **config):
        self.sites = {11 + m: ScriptedSite(*each) for m, each in enumerate(targets().items())}
        defaults = {
            "name": "scripted", "kind": "GENERATED", "clients": 3, "rounds": 3, "features": FEATURES,
            "reply-timeout": 1e-3, "out": str(folder), "precision": "fp64", "backbone": "none",
        }  # fmt: skip
        super().__init__(self._answer, defaults | config, {}, silent)
        self.configs = {node: {"site": site.name} for node, site in self.sites.items()}

    @property
    def ridge(self) -> ScriptedSite:
        """The site that attacks."""
        return self.sites[12]

    def _answer(self, message, context):
        payload = Payload.from_records(message.content)
        reply = self.sites[context.node_id].reply(message.metadata.message_type, payload)
        records = reply if not isinstance(reply, Payload) else to_records(reply)
        return Message(records, reply_to=message)

    def serve(self):
        """Run the server; return the stored run."""
        config = FederationConfig.from_run_config(self.config)
        return run_server(GridTransport(self, config.reply_timeout), config)


def to_records(payload: Payload):
    """Convert without changing types, as an attacker may."""
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    arrays = {name: FlowerArray(np.asarray(value)) for name, value in payload.arrays.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "metadata": ConfigRecord(dict(payload.metadata))})


def set_array(name: str, value) -> Change:
    """Return a change that sets an array, to a value or to a function of it; None removes it."""

    def change(payload: Payload) -> Payload:
        arrays = dict(payload.arrays)
        new = value(arrays[name]) if callable(value) else value
        if new is None:
            del arrays[name]
        else:
            arrays[name] = np.asarray(new)
        return replace(payload, arrays=arrays)

    return change


def set_value(name: str, value) -> Change:
    """Return a change that sets metadata; None removes it."""

    def change(payload: Payload) -> Payload:
        metadata = {key: each for key, each in payload.metadata.items() if key != name}
        return replace(payload, metadata=metadata if value is None else {**metadata, name: value})

    return change


def forge_signature(payload: Payload) -> Payload:
    """Replace the signature by another text of its form."""
    return replace(payload, metadata={**payload.metadata, SIGNATURE: 128 * "0"})
