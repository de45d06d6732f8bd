"""A record: what a block looks like below host memory, on disk and in shared stores alike.

    header, 128 bytes                                        body
    magic version flags key-length | namespace | key | …     the block's bytes, or their ciphertext

The header says whose bytes follow and carries their checksum, and a checksum of its own. Nothing is served unless
all of it holds: namespace, key and length are the expected ones, and both checksums match (F8).
"""

from __future__ import annotations

import enum
import logging
import struct
import threading
from hashlib import blake2b
from typing import NamedTuple

import xxhash

from kvtide.tiers.base import HIT, KeyResult, TierKey, Verdict
from kvtide.tiers.encryption import Cipher
from kvtide.tiers.log_once import is_worth_a_line

FORMAT_VERSION = 1
"""Part of every namespace, too: records of another version are never looked at."""
MAGIC = b"KVtd"
KEY_BYTES_MAX = 36
"""A SHA-256 and the number of a group. Longer keys are stored by their hash."""
BODY_BYTES_MAX = 2**32 - 1

_LAYOUT = struct.Struct(f"<4sHBB16s{KEY_BYTES_MAX}sI16sQI12s16s")
_CHECKSUM = struct.Struct("<Q")
_AUTHENTICATED_BYTES = 4 + 2 + 1 + 1 + 16 + KEY_BYTES_MAX + 4
"""From the magic to the length: what an encrypted body must belong to."""
HEADER_BYTES = _LAYOUT.size + _CHECKSUM.size
_ENCRYPTED = 1
_NO_NONCE, _NO_TAG = bytes(12), bytes(16)

_log = logging.getLogger(__name__)


class Header(NamedTuple):
    """What is said about one body."""

    namespace: bytes
    """Digest of the `Namespace` that it was made under, rank included."""
    key: bytes
    length: int
    checksum: bytes
    """XXH3-128 of the body as it is stored, so that operators can verify what they cannot decrypt."""
    sequence: int = 0
    """Order of writing, where a store needs one."""
    place: int = 0
    """Where the body is, where a store needs to say so."""
    nonce: bytes = _NO_NONCE
    tag: bytes = _NO_TAG
    encrypted: bool = False

    def pack(self) -> bytes:
        """Return the header as it is stored."""
        raw = _LAYOUT.pack(
            MAGIC,
            FORMAT_VERSION,
            _ENCRYPTED if self.encrypted else 0,
            len(self.key),
            self.namespace,
            self.key,
            self.length,
            self.checksum,
            self.sequence,
            self.place,
            self.nonce,
            self.tag,
        )
        return raw + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(raw))


def unpack(raw: bytes | memoryview) -> Header | None:
    """Read a header. None: these bytes are not one, or not any more."""
    if len(raw) != HEADER_BYTES:
        return None
    magic, version, flags, key_bytes, namespace, key, length, body, sequence, place, nonce, tag = _LAYOUT.unpack_from(
        raw
    )
    (checksum,) = _CHECKSUM.unpack_from(raw, _LAYOUT.size)
    if magic != MAGIC or version != FORMAT_VERSION or key_bytes > KEY_BYTES_MAX:
        return None
    if checksum != xxhash.xxh3_64_intdigest(memoryview(raw)[: _LAYOUT.size]):
        return None
    encrypted = bool(flags & _ENCRYPTED)
    return Header(namespace, key[:key_bytes], length, body, sequence, place, nonce, tag, encrypted)


def stored_key(key: TierKey) -> bytes:
    """Return the name a key has inside records: itself, or its hash where it is too long."""
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX).digest()


def checksum_of(body: bytes | memoryview) -> bytes:
    """Return the checksum that a header carries. Runs without the GIL."""
    return xxhash.xxh3_128_digest(body)


class Reading(enum.Enum):
    """What became of a record that was read."""

    GOOD = "good"
    OTHER = "it belongs to another key, namespace or length"
    CORRUPT = "it did not verify"
    WRONG_SECRET = "it was encrypted with another key"  # noqa: S105 - a sentence, not a password

    @property
    def result(self) -> KeyResult:
        """What a get answers."""
        return HIT if self is Reading.GOOD else KeyResult(Verdict.MISS, self.value)


class Sealed(NamedTuple):
    """A record, ready to be stored."""

    header: bytes
    body: memoryview
    """What to store: the caller's own memory, or a ciphertext of the same length."""


class Sealer:
    """Makes records of blocks, and blocks of records, for one namespace and rank. Counts what did not verify.

    Calls may come from several threads at a time.

    Examples:
        >>> sealer = Sealer(bytes(16))
        >>> header, body = sealer.seal(b"key", memoryview(b"bytes"))
        >>> into = memoryview(bytearray(5))
        >>> sealer.open(b"key", header, body, into), bytes(into)
        (<Reading.GOOD: 'good'>, b'bytes')

    """

    def __init__(self, namespace_digest: bytes, cipher: Cipher | None = None, *, where: str = "a tier") -> None:
        assert len(namespace_digest) == 16  # noqa: PLR2004 - as in the layout above
        self.namespace_digest = namespace_digest
        self._cipher = cipher
        self.where = where
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(Reading, 0)

    @property
    def corrupt_records(self) -> int:
        """How many records did not verify."""
        return self._counts[Reading.CORRUPT]

    @property
    def wrong_secret_records(self) -> int:
        """How many records verify and cannot be decrypted: they were encrypted with another key, or not at all."""
        return self._counts[Reading.WRONG_SECRET]

    def seal(self, key: TierKey, body: memoryview, *, sequence: int = 0, place: int = 0) -> Sealed:
        """Return the record of a block. `body` is contiguous and has at most `BODY_BYTES_MAX` bytes."""
        bare = Header(self.namespace_digest, stored_key(key), body.nbytes, bytes(16), sequence, place)
        if self._cipher is None:
            return Sealed(bare._replace(checksum=checksum_of(body)).pack(), body)
        bare = bare._replace(encrypted=True)
        nonce, stored, tag = self._cipher.encrypt(body, _authenticated(bare))
        header = bare._replace(checksum=checksum_of(stored), nonce=nonce, tag=tag)
        return Sealed(header.pack(), stored)

    def open(self, key: TierKey, header: bytes | memoryview, body: bytes | memoryview, into: memoryview) -> Reading:
        """Verify a record and bring its bytes to `into`. `body` may be the same object: what is there is verified.

        Unless the answer is GOOD, what is in `into` is undefined.
        """
        reading = self._open(key, header, body, into)
        if reading is not Reading.GOOD:
            self._note(reading, key)
        return reading

    def _open(self, key: TierKey, header: bytes | memoryview, body: bytes | memoryview, into: memoryview) -> Reading:
        found = unpack(header)
        if found is None:
            return Reading.CORRUPT
        if (found.namespace, found.key) != (self.namespace_digest, stored_key(key)) or found.length != into.nbytes:
            return Reading.OTHER
        if found.length != memoryview(body).nbytes or found.checksum != checksum_of(body):
            return Reading.CORRUPT
        if found.encrypted != (self._cipher is not None):
            return Reading.WRONG_SECRET
        if self._cipher is not None:
            good = self._cipher.decrypt(found.nonce, body, found.tag, _authenticated(found), into)
            return Reading.GOOD if good else Reading.WRONG_SECRET
        if body is not into:
            into.cast("B")[:] = memoryview(body).cast("B")
        return Reading.GOOD

    def _note(self, reading: Reading, key: TierKey) -> None:
        """Count it, and say so now and then: a bad disk must not fill the log."""
        with self._lock:
            self._counts[reading] += 1
            count = self._counts[reading]
        if reading is Reading.CORRUPT and is_worth_a_line(count):
            what = "a corrupt record" if count == 1 else f"corrupt record {count}"
            _log.warning("kvtide: %s in %s, a miss: key %s", what, self.where, key.hex())
        elif reading is Reading.WRONG_SECRET and count == 1:
            _log.warning(
                "kvtide: records in %s are encrypted with another key, or not at all; they are misses", self.where
            )


def _authenticated(header: Header) -> bytes:
    """Return what an encrypted body must belong to: a body moved under another header does not decrypt."""
    return header._replace(checksum=bytes(16), sequence=0, place=0, nonce=_NO_NONCE, tag=_NO_TAG).pack()[
        :_AUTHENTICATED_BYTES
    ]
