"""What a store says about the namespace that was used last, so that unexpected misses can be explained (F23)."""

from __future__ import annotations

from typing import Any

from kvtide.tiers.mooncake.names import manifest_name
from kvtide.tiers.mooncake.staging import REGION_BYTES, Region
from kvtide.tiers.namespace import (
    OTHER_FORMATS,
    Namespace,
    manifest_from_json,
    tell_other_formats,
    tell_unreadable,
)


def note_manifest(store: Any, region: Region, namespace: Namespace, where: str) -> None:
    """Say how this namespace differs from the last one of the same model and rank, and take its place.

    Say as well if another version of kvtide has left blocks of this model.
    """
    found = store.batch_is_exist([manifest_name(namespace, other) for other in OTHER_FORMATS])
    formats = [other for other, status in zip(OTHER_FORMATS, found, strict=True) if status == 1]
    tell_other_formats(where, formats, "the store evicts them by and by")
    name = manifest_name(namespace)
    own = namespace.to_json().encode()
    length = store.get_into(name, region.address, REGION_BYTES)
    known = bytes(region.memory[: max(0, length)])
    if known == own:
        return
    manifest = manifest_from_json(known)
    if manifest is not None:
        namespace.tell_differences(where, namespace.differences(manifest))
    elif known:
        tell_unreadable(where, name)
    region.memory[: len(own)] = own
    store.upsert_from(name, region.address, len(own))
