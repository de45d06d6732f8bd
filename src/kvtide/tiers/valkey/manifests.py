"""What a server says about the namespaces in it, so that a miss that nobody expects can be explained (F23)."""

from __future__ import annotations

from kvtide.tiers.namespace import (
    OTHER_FORMATS,
    Namespace,
    manifest_from_json,
    tell_other_formats,
    tell_unreadable,
)
from kvtide.tiers.valkey.connection import Connection
from kvtide.tiers.valkey.names import NAMESPACES, Names, namespaces

_MANIFESTS_MAX = 1000
"""More are not written: they are for people to read."""


def read_manifests(connection: Connection, where: str | None = None) -> dict[bytes, dict[str, object]]:
    """Return the manifests of all namespaces by their digests in hexadecimal.

    `where`: the log hears of damaged ones there, and of blocks of other formats.
    """
    reply, *others = connection.ask(
        [(b"HGETALL", NAMESPACES), *((b"EXISTS", namespaces(other)) for other in OTHER_FORMATS)]
    )
    if where is not None:
        formats = [number for number, found in zip(OTHER_FORMATS, others, strict=True) if found == 1]
        tell_other_formats(where, formats, "the server evicts them by and by, or remove the keys kvtide:FORMAT:*")
    if not isinstance(reply, list):
        if where is not None and str(reply).startswith("WRONGTYPE"):
            tell_unreadable(where, NAMESPACES.decode())
        return {}  # this user may not read them; they are an extra
    parsed = {digest: manifest_from_json(text) for digest, text in zip(reply[::2], reply[1::2], strict=True)}
    if where is not None and None in parsed.values():
        tell_unreadable(where, f"a manifest of {NAMESPACES.decode()}")
    return {digest: manifest for digest, manifest in parsed.items() if manifest is not None}


def note_manifest(connection: Connection, names: Names, namespace: Namespace, where: str) -> None:
    """Write this namespace's manifest. If it is new here, say how it differs from the nearest of the same model."""
    known = read_manifests(connection, where)
    if names.digest in known or len(known) >= _MANIFESTS_MAX:
        return
    connection.ask([(b"HSET", NAMESPACES, names.digest, namespace.to_json().encode())])
    differences = [
        namespace.differences(manifest)
        for manifest in known.values()
        if (manifest.get("model"), manifest.get("rank")) == (namespace.model, namespace.rank)
    ]
    namespace.tell_differences(where, min(differences, key=len, default=()))
