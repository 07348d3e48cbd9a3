"""Certificates and keys of a Flower federation on this machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedgram._util.files import atomic_write

LOCALHOST = "127.0.0.1"
LIFETIME = timedelta(days=30)
"""A certificate is written at every start, so it only has to outlive one run."""


class KeyFiles(NamedTuple):
    """A public file (a certificate or a public key) and its private key (mode 0600)."""

    public: Path
    private: Path


def write_certificate(folder: Path) -> KeyFiles:
    """Write a self-signed certificate for 127.0.0.1, which is its own certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, LOCALHOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(LOCALHOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = KeyFiles(folder / "server.pem", folder / "server.key")
    files.public.write_bytes(certificate.public_bytes(Encoding.PEM))
    form = Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    with atomic_write(files.private, private=True) as temporary:
        temporary.write_bytes(key.private_bytes(*form))
    return files


def write_node_key(folder: Path, name: str) -> KeyFiles:
    """Write a key pair that a SuperNode authenticates with, in the form that Flower reads."""
    key = ec.generate_private_key(ec.SECP384R1())
    files = KeyFiles(folder / f"{name}.node.pub", folder / f"{name}.node.key")
    files.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    form = Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    with atomic_write(files.private, private=True) as temporary:
        temporary.write_bytes(key.private_bytes(*form))
    return files
