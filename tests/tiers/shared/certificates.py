"""Certificates for tests: an authority, and what it signed."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOW = datetime.datetime.now(datetime.timezone.utc)
_DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """Files with a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates. Its own is what clients and servers trust."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        signed = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self.certificate = _write(folder / f"{name}-ca.pem", signed.sign(self._key, hashes.SHA256()))

    def sign(self, name: str, address: str = "127.0.0.1") -> Pair:
        """Return a new certificate for a server or a client at an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        signed = self._builder(subject, key).add_extension(names, critical=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{name}-key.pem"
        file.write_bytes(secret)
        return Pair(_write(self._folder / f"{name}.pem", signed.sign(self._key, hashes.SHA256())), str(file))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - _DAY)
            .not_valid_after(_NOW + _DAY)
        )


def _write(file: Path, certificate: x509.Certificate) -> str:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return str(file)
