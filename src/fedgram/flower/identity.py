"""Keys of sites: sign replies, verify them, and fingerprint rows.

A site creates an Ed25519 key on its first message and keeps it in its private folder. The server binds the
site's name to that key at the first exchange and refuses the name under any other key.
"""

from __future__ import annotations

import hmac
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedgram._util.errors import InputError
from fedgram._util.files import atomic_write
from fedgram._util.locks import wait_for_lock
from fedgram.data.split import Split
from fedgram.flower.messages import SIGNATURE, Payload, RejectedReplyError
from fedgram.runs.signatures import is_signed


@dataclass(frozen=True, eq=False)
class SiteKey:
    """The private key of a site."""

    key: Ed25519PrivateKey

    @classmethod
    def load(cls, path: Path) -> SiteKey:
        """Read a site's key, or create it (mode 0600) if there is none."""
        with wait_for_lock(path.parent):  # two messages may arrive at a time
            if not path.exists():
                created = Ed25519PrivateKey.generate()
                form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
                with atomic_write(path, private=True) as temporary:
                    temporary.write_bytes(created.private_bytes(*form))
        with suppress(ValueError):
            key = load_pem_private_key(path.read_bytes(), password=None)
            if isinstance(key, Ed25519PrivateKey):
                return cls(key)
        raise InputError(
            f"'{path}' is not a site key. Restore it from a backup, or delete it and let the server's "
            "operator readmit the site with its new key.",
            field=str(path),
        )

    @property
    def public(self) -> str:
        """The public key in hexadecimal digits."""
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def sign(self, payload: Payload) -> Payload:
        """Add the signature of everything else."""
        signature = self.key.sign(bytes.fromhex(payload.digest())).hex()
        return replace(payload, metadata={**payload.metadata, SIGNATURE: signature})

    def fingerprint(self, *splits: Split | None) -> str:
        """Hash rows under the private key, so that nobody else can test guesses of them."""
        secret = self.key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        content = hmac.new(secret, digestmod=sha256)
        for split in splits:
            for array in () if split is None else (split.inputs, split.targets):
                content.update(f"{array.dtype.str} {array.shape} ".encode())
                content.update(np.ascontiguousarray(array).tobytes())
            content.update(b"end")
        return content.hexdigest()


def verify_signature(payload: Payload) -> None:
    """Reject a payload that the owner of its key did not sign."""
    if not is_signed(payload.metadata["key"], payload.digest(), payload.metadata[SIGNATURE]):
        raise RejectedReplyError("its signature is wrong")
