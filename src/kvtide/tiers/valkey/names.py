"""What keys are called in the server.

kvtide:1:namespaces                     hash: digest of a namespace → its manifest
kvtide:1:DIGEST:generation-0 … -3       which generation of this namespace's blocks counts
kvtide:1:DIGEST:GENERATION:KEY          a record
"""

from __future__ import annotations

from typing import NamedTuple

from kvtide.tiers.base import TierKey
from kvtide.tiers.record import FORMAT_VERSION, stored_key

PREFIX = b"kvtide:%d:" % FORMAT_VERSION
_COPIES = 4


def namespaces(format_: int) -> bytes:
    """Return where the manifests are that a version of kvtide with this format has written."""
    return b"kvtide:%d:namespaces" % format_


NAMESPACES = namespaces(FORMAT_VERSION)


def generation_names(digest: bytes) -> tuple[bytes, ...]:
    """Return where the generation is named: see `generation`. Digests are in hexadecimal here."""
    return tuple(b"%b%b:generation-%d" % (PREFIX, digest, copy) for copy in range(_COPIES))


class Names:
    """The names of one namespace."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest.hex().encode()
        self.generation = generation_names(self.digest)

    def record(self, generation: bytes, key: TierKey) -> bytes:
        """Return the name of a block's record."""
        return b"%b%b:%b:%b" % (PREFIX, self.digest, generation, stored_key(key).hex().encode())

    def records(self) -> bytes:
        """Return the pattern of all records, of any generation."""
        return b"%b%b:*:*" % (PREFIX, self.digest)


class RecordName(NamedTuple):
    """The name of a record, in parts."""

    raw: bytes
    digest: bytes
    generation: bytes
    key: bytes

    @staticmethod
    def parse(raw: bytes) -> RecordName | None:
        """Take a name apart. None: it is not the name of a record."""
        parts = raw.removeprefix(PREFIX).split(b":")
        if not raw.startswith(PREFIX) or len(parts) != 3:  # noqa: PLR2004 - digest, generation, key
            return None
        try:
            return RecordName(raw, parts[0], parts[1], bytes.fromhex(parts[2].decode("ascii")))
        except ValueError:
            return None
