"""What operators do with a disk store: see `kvtide.tiers.admin`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from kvtide.tiers.admin import Progress, Verified
from kvtide.tiers.disk.aligned import PAGE
from kvtide.tiers.disk.file_io import read_all
from kvtide.tiers.disk.lock import holder
from kvtide.tiers.disk.manifests import read_manifests
from kvtide.tiers.disk.place import Place, named_place
from kvtide.tiers.disk.segments import Found, find_segments
from kvtide.tiers.disk.store_folder import (
    RankFolder,
    check_format,
    empty,
    forget,
    rank_folders,
    remove_store,
    stored_format,
    usable,
    used_bytes,
)
from kvtide.tiers.record import FORMAT_VERSION, HEADER_BYTES, Header, checksum_of, unpack

_NAMED_MAX = 100


def inspect(place: str, _options: Mapping[str, object]) -> dict[str, object]:
    """Say what is in a store, from the headers of its records. A server may be using it."""
    named = named_place(place)
    with usable("PLACE", place):
        found = _inspect_node(named) if named.is_of_node else _inspect_store(named.root)
        others = [_inspect_other(store) for store in named.all_stores if not _is_read(store)]
    return {**found, "other_formats": others}


def _inspect_node(named: Place) -> dict[str, object]:
    stores = [_inspect_store(store) for store in named.stores if _is_read(store)]
    records, nbytes = (sum(int(str(store[name])) for store in stores) for name in ("records", "bytes"))
    return {"type": "disk", "place": str(named.root), "records": records, "bytes": nbytes, "stores": stores}


def _is_read(store: Path) -> bool:
    """Whether this version of kvtide reads a store."""
    return stored_format("PLACE", store) in (None, FORMAT_VERSION)


def _inspect_other(store: Path) -> dict[str, object]:
    return {"place": str(store), "format": stored_format("PLACE", store) or None, "disk_bytes": used_bytes(store)}


def _inspect_store(root: Path) -> dict[str, object]:
    check_format("PLACE", root)
    ranks = [_inspect_rank(folder) for folder in rank_folders(root)]
    namespaces = [namespace for rank in ranks for namespace in rank.pop("namespaces")]  # type: ignore[attr-defined]
    return {
        "type": "disk",
        "place": str(root),
        "format": stored_format("PLACE", root),
        "records": sum(namespace["records"] for namespace in namespaces),
        "bytes": sum(namespace["bytes"] for namespace in namespaces),
        "ranks": ranks,
        "namespaces": namespaces,
    }


def verify(place: str, _options: Mapping[str, object], progress: Progress) -> Verified:
    """Read every record and compare checksums; needs no encryption key. Changes nothing."""
    named = named_place(place)
    if not named.is_of_node:
        check_format("PLACE", named.root)
    with usable("PLACE", place), named.locked():
        stores = [store for store in named.all_stores if _is_read(store)]
        others = tuple(str(store) for store in named.all_stores if store not in stores)
        folders = [folder for store in stores for folder in rank_folders(store)]
        segments = [segment for folder in folders for segment in find_segments(folder.path)]
        total = sum(segment.cost_bytes for segment in segments)
        done = records = size = corrupt_count = 0
        corrupt: list[str] = []
        for segment in segments:
            try:
                for header, entry, good in _verified(segment):
                    records += 1
                    size += header.length if header is not None else 0
                    if not good:
                        corrupt_count += 1
                        key = header.key.hex() if header is not None else "unreadable header"
                        corrupt.append(f"{key} in {segment.path}, record {entry}")
            except OSError as error:  # one file, and the others may be well
                corrupt_count += 1
                corrupt.append(f"{segment.path} cannot be read: {error.strerror}")
            done += segment.cost_bytes
            progress(done, total)
    return Verified(records, size, tuple(corrupt[:_NAMED_MAX]), corrupt_count, others)


def clear(place: str, _options: Mapping[str, object], progress: Progress) -> int:
    """Remove all that is kvtide's in a folder, whatever its format; return the number of records."""
    named = named_place(place)
    removed = 0
    with usable("PLACE", place), named.locked():
        stores = named.all_stores
        folders = [folder for store in stores for folder in rank_folders(store)]
        for done, folder in enumerate(folders, start=1):
            removed += sum(len(_headers_if_readable(segment) or ()) for segment in find_segments(folder.path))
            empty(folder.path)
            progress(done, len(folders))
        for store in stores:
            if store != named.root:
                remove_store(store)
        forget(named.root)
    return removed


def _inspect_rank(folder: RankFolder) -> dict[str, object]:
    manifests = read_manifests(folder.path)
    found: dict[bytes, dict[str, object]] = {
        digest: {"manifest": manifest, "records": 0, "bytes": 0} for digest, manifest in manifests.items()
    }
    taken = segments = unreadable = 0
    for segment in find_segments(folder.path):
        segments += 1
        taken += segment.cost_bytes
        entries = _headers_if_readable(segment)
        unreadable += entries is None
        headers = [header for _, header in entries or () if header is not None]
        if segment.owner is not None:
            empty_one: dict[str, object] = {"manifest": None, "records": 0, "bytes": 0}
            entry = found.setdefault(segment.owner.namespace, empty_one)
            entry["records"] = int(str(entry["records"])) + len(headers)
            entry["bytes"] = int(str(entry["bytes"])) + sum(header.length for header in headers)
    return {
        "rank": folder.rank,
        "world": folder.world,
        "used_by": holder(folder.path),
        "segments": segments,
        "unreadable_segments": unreadable,
        "disk_bytes": taken,
        "namespaces": list(found.values()),
    }


def _headers(segment: Found) -> Iterator[tuple[int, Header | None]]:
    """Read a segment's table; yields entries that are not empty, None for those that do not verify."""
    with segment.path.open("rb") as file:
        file.read(PAGE)  # also of a file that is nobody's: if the disk cannot, that is told
        if segment.owner is None:
            return
        table = file.read(segment.owner.layout.table_bytes)
    for entry in range(segment.owner.layout.capacity):
        raw = table[entry * HEADER_BYTES : (entry + 1) * HEADER_BYTES]
        if not any(raw):
            continue
        header = unpack(raw)
        stale = header is not None and header.sequence != segment.owner.first_sequence + entry
        if not stale:
            yield entry, header


def _headers_if_readable(segment: Found) -> list[tuple[int, Header | None]] | None:
    """Return what `_headers` yields. None: the system does not let the file be read."""
    try:
        return list(_headers(segment))
    except OSError:
        return None


def _verified(segment: Found) -> Iterator[tuple[Header | None, int, bool]]:
    with segment.path.open("rb", buffering=0) as file:
        for entry, header in _headers(segment):
            if header is None:
                yield None, entry, False
                continue
            yield header, entry, _body_holds(file.fileno(), header)


def _body_holds(file: int, header: Header) -> bool:
    body = memoryview(bytearray(header.length))
    try:
        count = read_all(file, [body] if header.length else [], header.place * PAGE)
    except OSError:  # a bad sector costs the record that lies there
        return False
    return count == header.length and checksum_of(body) == header.checksum
