"""What a store says about the namespace that was used last, so that unexpected misses can be explained (F23)."""

from __future__ import annotations

from typing import Any

from kvtide.tiers.mooncake.names import manifest_name
from kvtide.tiers.mooncake.staging import REGION_BYTES, Region
from kvtide.tiers.namespace import Namespace, manifest_from_json


def note_manifest(store: Any, region: Region, namespace: Namespace, where: str) -> None:
    """Say how this namespace differs from the last one of the same model and rank, and take its place."""
    name = manifest_name(namespace)
    own = namespace.to_json().encode()
    length = store.get_into(name, region.address, REGION_BYTES)
    known = bytes(region.memory[: max(0, length)])
    if known == own:
        return
    if known and (manifest := manifest_from_json(known)) is not None:
        namespace.tell_differences(where, namespace.differences(manifest))
    region.memory[: len(own)] = own
    store.upsert_from(name, region.address, len(own))
