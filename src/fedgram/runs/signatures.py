"""Verify Ed25519 signatures of hashes, all in hexadecimal digits."""

from __future__ import annotations


def can_verify() -> bool:
    """Whether the library for signatures is installed; the extra `flower` has it."""
    from importlib.util import find_spec

    return find_spec("cryptography") is not None


def is_signed(key: str, digest: str, signature: str) -> bool:
    """Whether the owner of a public key signed a hash.

    Examples
    --------
    >>> from fedgram.runs.signatures import is_signed
    >>> is_signed(64 * "0", 64 * "0", "no signature")
    False
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), bytes.fromhex(digest))
    except (ValueError, InvalidSignature):
        return False
    return True
