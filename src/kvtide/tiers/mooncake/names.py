"""What keys are called in the store.

kvtide:1:DIGEST:KEY             a record of the namespace with that digest
kvtide-manifest:1:MODEL         the manifest of the namespace used last for a model and rank
"""

from __future__ import annotations

from hashlib import blake2b

from kvtide.tiers.base import TierKey
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.record import FORMAT_VERSION, stored_key

PREFIX = f"kvtide:{FORMAT_VERSION}:"
ALL_RECORDS = f"^{PREFIX}"
ALL_MANIFESTS = f"^kvtide-manifest:{FORMAT_VERSION}:"


class Names:
    """The names of one namespace."""

    def __init__(self, digest: bytes) -> None:
        self._root = f"{PREFIX}{digest.hex()}:"

    def record(self, key: TierKey) -> str:
        """Return the name of a block's record."""
        return self._root + stored_key(key).hex()

    def records(self) -> str:
        """Return the pattern of all records."""
        return f"^{self._root}"


def manifest_name(namespace: Namespace, format_: int = FORMAT_VERSION) -> str:
    """Return where the manifest of a model's namespace is kept. The store cannot list names, so it has to be known."""
    model = blake2b(f"{namespace.model}\0{namespace.rank}".encode(), digest_size=16).hexdigest()
    return f"kvtide-manifest:{format_}:{model}"
