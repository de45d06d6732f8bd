"""What a server says about the namespaces in it, so that a miss that nobody expects can be explained (F23)."""

from __future__ import annotations

import logging

from kvtide.tiers.namespace import Namespace, manifest_from_json
from kvtide.tiers.valkey.link import Link
from kvtide.tiers.valkey.names import NAMESPACES, Names

_MANIFESTS_MAX = 1000
"""More are not written: they are for people to read."""

_log = logging.getLogger(__name__)


def read_manifests(link: Link) -> dict[bytes, dict[str, object]]:
    """Return the manifests of all namespaces by their digests in hexadecimal."""
    (reply,) = link.ask([(b"HGETALL", NAMESPACES)])
    if not isinstance(reply, list):
        return {}  # this user may not read them; they are an extra
    pairs = zip(reply[::2], reply[1::2], strict=True)
    parsed = ((digest, manifest_from_json(text)) for digest, text in pairs)
    return {digest: manifest for digest, manifest in parsed if manifest is not None}


def note_manifest(link: Link, names: Names, namespace: Namespace, where: str) -> None:
    """Write this namespace's manifest. If it is new here, say how it differs from the nearest of the same model."""
    known = read_manifests(link)
    if names.digest in known or len(known) >= _MANIFESTS_MAX:
        return
    link.ask([(b"HSET", NAMESPACES, names.digest, namespace.to_json().encode())])
    differences = [
        namespace.differences(manifest)
        for manifest in known.values()
        if (manifest.get("model"), manifest.get("rank")) == (namespace.model, namespace.rank)
    ]
    if differences:
        _log.warning(
            "kvtide: the blocks of %s in %s were made otherwise and are not used: %s",
            namespace.model,
            where,
            "; ".join(sorted(differences, key=len)[0]),
        )
