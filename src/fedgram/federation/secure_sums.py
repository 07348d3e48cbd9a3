"""Sums over sites that show the server nothing but the total (Bonawitz et al., 2017).

For sum k, site u draws a key pair and a seed b_u, and sends its numbers x_u under masks, modulo 2¹²⁸:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)

s_uv is the secret that u and v agree on, so pair masks cancel in the total. Every site gives every site a
share of its key and of its seed, encrypted for the receiver. When the masked numbers have arrived, the sites
that sent them reveal shares: of b_v for a site v that sent its numbers, of its key for a site v that did not,
and never of both. t shares restore a secret, so the total of the sites that sent opens even if more drop out.
A key and a seed serve one sum only.

Assumptions: the server follows the protocol, but may keep and study all it sees, and collude with fewer than
t sites. At least two of the sites in a sum are honest.

Primitives: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 of `cryptography`, Shamir's shares of
`pycryptodome`. Numbers have 64 binary digits after the point, so a total is exact to 5e-20 per site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgram._util.arrays import Array
from fedgram._util.errors import InputError

SCALE, MODULUS = 2**64, 2**128
NUMBER_BYTES = 16
"""Bytes of a number modulo 2¹²⁸."""
KEY_BYTES = 32
SEED_BYTES = 16
"""Bytes of a shared secret and of a share; Shamir's shares are over GF(2¹²⁸)."""
LARGEST = 2**53
"""Largest absolute value of a number, so that the total of 1,000 sites stays below 2⁶³."""

Number = float | Fraction
Keys = Mapping[str, Sequence[bytes]]
"""Public keys of each site: one for encryption, then one for each sum."""


def default_threshold(sites: int) -> int:
    """Return t: more than half of the sites, so that two disjoint groups never open one sum twice."""
    return sites // 2 + 1


def encode(values: Iterable[Number]) -> Array:
    """Convert numbers to fixed point modulo 2¹²⁸, an object array of integers (n,)."""
    listed: list[Any] = list(values)
    if not all(abs(value) < LARGEST for value in listed):  # NaN fails as well
        raise InputError(
            f"A number is not finite, or above {LARGEST:.0e}, the largest in a secure sum. Divide columns "
            "by constants, so that they are of order one.",
            field="secure",
        )
    return np.array([round(value * SCALE) % MODULUS for value in listed], dtype=object)


def decode(total: Array) -> list[Fraction]:
    """Convert a total modulo 2¹²⁸ (n,) to exact numbers."""
    half = MODULUS // 2
    return [Fraction((int(value) + half) % MODULUS - half, SCALE) for value in total]


def to_bytes(numbers: Array) -> bytes:
    """Pack integers modulo 2¹²⁸ (n,)."""
    return b"".join(int(value).to_bytes(NUMBER_BYTES, "little") for value in numbers)


def from_bytes(data: bytes) -> Array:
    """Unpack integers modulo 2¹²⁸ (n,)."""
    starts = range(0, len(data), NUMBER_BYTES)
    values = [int.from_bytes(data[start : start + NUMBER_BYTES], "little") for start in starts]
    return np.array(values, dtype=object)


@dataclass(frozen=True, eq=False)
class Participant:
    """A site in a session of several sums.

    secret: 32 random bytes, from which its keys and seeds are derived. Whoever has it can unmask the site.
    """

    name: str
    session: str
    secret: bytes

    def public_keys(self, sums: int) -> list[bytes]:
        """Return the key for encryption, and one key for each sum."""
        private = [self._channel_key, *(_private_key(self._pair_seed(k)) for k in range(1, sums + 1))]
        return [key.public_key().public_bytes_raw() for key in private]

    def share_secrets(self, keys: Keys, threshold: int) -> dict[str, bytes]:
        """Split the secrets of all sums into shares, encrypted for each site.

        Shares are drawn at random: send the result of one call to all sites.
        """
        sums = len(keys[self.name]) - 1
        seeds = [seed(k) for k in range(1, sums + 1) for seed in (self._self_seed, self._pair_seed)]
        split = [_split(seed, threshold, len(keys)) for seed in seeds]
        return {
            other: self._seal(other, keys[other][0], b"".join(shares))
            for other, shares in zip(sorted(keys), zip(*split, strict=True), strict=True)
        }

    def mask(self, number: int, values: Iterable[Number], keys: Keys, sites: Iterable[str]) -> Array:
        """Mask this site's numbers (n,) for the sum of this number over these sites, itself included."""
        masked = encode(values)
        masked = masked + _expand(_self_key(self._self_seed(number)), len(masked))
        for other in sorted(set(sites) - {self.name}):
            stream = _pair_stream(
                self._pair_seed(number), keys[other][number], self.session, number, len(masked)
            )
            masked = masked + _sign(self.name, other) * stream
        return masked % MODULUS

    def reveal(
        self,
        number: int,
        sent: Iterable[str],
        dropped: Iterable[str],
        keys: Keys,
        sealed: Mapping[str, bytes],
    ) -> dict[str, bytes]:
        """Return a share of the seed of each site that sent its numbers, and of the key of each that dropped.

        sealed: what `share_secrets` of every site encrypted for this one.
        """
        kinds = {**dict.fromkeys(sent, 0), **dict.fromkeys(dropped, 1)}
        start = {name: ((number - 1) * 2 + kind) * SEED_BYTES for name, kind in kinds.items()}
        opened = {name: self._unseal(name, keys[name][0], sealed[name]) for name in kinds}
        return {name: opened[name][start[name] : start[name] + SEED_BYTES] for name in kinds}

    @property
    def _channel_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(_derive(self.secret, "channel", KEY_BYTES))

    def _pair_seed(self, number: int) -> bytes:
        return _derive(self.secret, f"pair {number}", SEED_BYTES)

    def _self_seed(self, number: int) -> bytes:
        return _derive(self.secret, f"self {number}", SEED_BYTES)

    def _seal(self, receiver: str, key: bytes, data: bytes) -> bytes:
        return self._cipher(key, self.name, receiver).encrypt(bytes(12), data, None)

    def _unseal(self, sender: str, key: bytes, data: bytes) -> bytes:
        try:
            return self._cipher(key, sender, self.name).decrypt(bytes(12), data, None)
        except InvalidTag:
            raise InputError(
                f"The shares of site '{sender}' were changed on the way. Start a new run.", field="secure"
            ) from None

    def _cipher(self, key: bytes, sender: str, receiver: str) -> ChaCha20Poly1305:
        """Return the cipher for one direction; its key encrypts one message, so the nonce may be zero."""
        agreed = self._channel_key.exchange(X25519PublicKey.from_public_bytes(key))
        return ChaCha20Poly1305(_derive(agreed, f"shares {self.session} {sender!r} {receiver!r}", KEY_BYTES))


def open_sum(
    session: str,
    number: int,
    keys: Keys,
    masked: Mapping[str, Array],
    dropped: Iterable[str],
    shares: Mapping[str, Mapping[str, bytes]],
    threshold: int,
) -> list[Fraction]:
    """Return the total of the sites that sent masked numbers.

    Parameters
    ----------
    session, number
        Of the sum.
    keys
        Public keys of all sites of the session.
    masked
        Masked numbers (n,) of each site that sent them.
    dropped
        The sites that others masked their numbers against, but that sent none.
    shares
        By sender, its share for each site in `masked` and `dropped`.
    threshold
        Shares that restore a secret.

    Raises
    ------
    InputError
        If too few sites sent shares.
    """
    if len(shares) < threshold:
        raise InputError(
            f"Only {len(shares)} sites stayed until the end of a secure sum; it opens with {threshold}. Wait "
            "for the others and run again.",
            field="secure",
        )
    positions = {name: index for index, name in enumerate(sorted(keys), start=1)}

    def restore(site: str) -> bytes:
        chosen = sorted(shares)[:threshold]
        return Shamir.combine([(positions[name], shares[name][site]) for name in chosen], ssss=False)

    total: Any = sum(masked.values())
    size = len(total)
    for site in masked:
        total = total - _expand(_self_key(restore(site)), size)
    for gone in dropped:
        seed = restore(gone)
        for site in masked:
            total = total - _sign(site, gone) * _pair_stream(seed, keys[site][number], session, number, size)
    return decode(total % MODULUS)


def _split(secret: bytes, threshold: int, sites: int) -> list[bytes]:
    return [share for _, share in sorted(Shamir.split(threshold, sites, secret, ssss=False))]


def _sign(first: str, second: str) -> int:
    return 1 if first < second else -1


def _derive(secret: bytes, info: str, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=f"fedgram {info}".encode()).derive(secret)


def _private_key(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derive(seed, "key", KEY_BYTES))


def _self_key(seed: bytes) -> bytes:
    return _derive(seed, "own mask", KEY_BYTES)


def _pair_stream(seed: bytes, other: bytes, session: str, number: int, size: int) -> Array:
    """Expand the secret that the owner of a seed agrees on with the owner of a public key."""
    agreed = _private_key(seed).exchange(X25519PublicKey.from_public_bytes(other))
    return _expand(_derive(agreed, f"mask {session} {number}", KEY_BYTES), size)


def _expand(key: bytes, size: int) -> Array:
    """Expand a key that is used once to integers modulo 2¹²⁸ (n,)."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return from_bytes(stream.update(bytes(NUMBER_BYTES * size)))
