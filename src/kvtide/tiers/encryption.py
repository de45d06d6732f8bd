"""Encryption at rest: AES-256-GCM, by the package `cryptography`."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.packages import install

SECRET_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_PREFIX_BYTES = 8
_COUNT_MAX = 2 ** (8 * (NONCE_BYTES - _PREFIX_BYTES))
_FORMAT = f"{2 * SECRET_BYTES} hexadecimal digits (make one: openssl rand -hex {SECRET_BYTES})"


class Cipher:
    """Encrypts bodies. No nonce is used twice: each is a random prefix of this object's own and a running number."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional, and slow to import
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self._aes = AESGCM(secret)
        self._invalid = InvalidTag
        self._lock = threading.Lock()
        self._prefix = os.urandom(_PREFIX_BYTES)
        self._count = 0

    def encrypt(self, body: memoryview, context: bytes) -> tuple[bytes, memoryview, bytes]:
        """Return nonce, ciphertext of the same length, and tag. `context` is authenticated with it."""
        nonce = self._nonce()
        joined = memoryview(self._aes.encrypt(nonce, body, context))
        return nonce, joined[:-TAG_BYTES], bytes(joined[-TAG_BYTES:])

    def decrypt(self, nonce: bytes, body: bytes | memoryview, tag: bytes, context: bytes, into: memoryview) -> bool:
        """Decrypt into memory of the same length. False: other key, other context, or changed bytes."""
        try:
            plain = self._aes.decrypt(nonce, b"".join((body, tag)), context)
        except self._invalid:
            return False
        into.cast("B")[:] = plain
        return True

    def _nonce(self) -> bytes:
        with self._lock:
            if self._count == _COUNT_MAX:
                self._prefix, self._count = os.urandom(_PREFIX_BYTES), 0
            count = self._count
            self._count += 1
            return self._prefix + count.to_bytes(NONCE_BYTES - _PREFIX_BYTES, "little")


@dataclass(frozen=True, slots=True)
class SecretSource:
    """Where the key is. The key itself is in no configuration and in no log."""

    option: str
    """As people wrote it, for error messages."""
    file: Path | None = None
    variable: str | None = None

    def cipher(self) -> Cipher:
        """Read the key, and make a cipher of it."""
        return Cipher(self.read())

    def read(self) -> bytes:
        """Return the key, or refuse with what is wrong about it, not with what it is."""
        if find_spec("cryptography") is None:
            raise ConfigError(self.option, self._where, f"the package cryptography: {install('encryption')}")
        text = self._read_file(self.file) if self.file is not None else self._read_variable()
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES:
            raise ConfigError(self.option, self._where, f"to hold {_FORMAT}")
        return secret

    @property
    def _where(self) -> str:
        return str(self.file if self.file is not None else self.variable)

    def _read_file(self, file: Path) -> str:
        try:
            mode = file.stat().st_mode
            text = file.read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise ConfigError(self.option, str(file), f"a file that can be read ({error.strerror})") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(self.option, str(file), f"a file that only its owner can read: chmod 600 {file}")
        return text

    def _read_variable(self) -> str:
        value = os.environ.get(self.variable or "")
        if value is None:
            raise ConfigError(self.option, self.variable, f"an environment variable that is set, to {_FORMAT}")
        return value
