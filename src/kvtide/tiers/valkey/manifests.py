"""What a server says about the namespaces in it, so that a miss that nobody expects can be explained (F23)."""

from __future__ import annotations

from kvtide.tiers.namespace import Namespace, manifest_from_json
from kvtide.tiers.valkey.connection import Connection
from kvtide.tiers.valkey.names import NAMESPACES, Names

_MANIFESTS_MAX = 1000
"""More are not written: they are for people to read."""


def read_manifests(connection: Connection) -> dict[bytes, dict[str, object]]:
    """Return the manifests of all namespaces by their digests in hexadecimal."""
    (reply,) = connection.ask([(b"HGETALL", NAMESPACES)])
    if not isinstance(reply, list):
        return {}  # this user may not read them; they are an extra
    pairs = zip(reply[::2], reply[1::2], strict=True)
    parsed = ((digest, manifest_from_json(text)) for digest, text in pairs)
    return {digest: manifest for digest, manifest in parsed if manifest is not None}


def note_manifest(connection: Connection, names: Names, namespace: Namespace, where: str) -> None:
    """Write this namespace's manifest. If it is new here, say how it differs from the nearest of the same model."""
    known = read_manifests(connection)
    if names.digest in known or len(known) >= _MANIFESTS_MAX:
        return
    connection.ask([(b"HSET", NAMESPACES, names.digest, namespace.to_json().encode())])
    differences = [
        namespace.differences(manifest)
        for manifest in known.values()
        if (manifest.get("model"), manifest.get("rank")) == (namespace.model, namespace.rank)
    ]
    namespace.tell_differences(where, min(differences, key=len, default=()))
