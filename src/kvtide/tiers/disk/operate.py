"""What operators do with a disk store: see `kvtide.tiers.operate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.tiers.disk.files import read_all
from kvtide.tiers.disk.folder import Found, find_segments
from kvtide.tiers.disk.lock import FolderLock, Held, holder
from kvtide.tiers.disk.manifests import read_manifests
from kvtide.tiers.disk.memory import PAGE
from kvtide.tiers.disk.place import FORMAT_NAME, RankFolder, check_format, empty, in_use, rank_folders, stored_format
from kvtide.tiers.operate import Progress, Verified
from kvtide.tiers.record import HEADER_BYTES, Header, checksum_of, unpack

_NAMED_MAX = 100


def inspect(place: str, _options: Mapping[str, object]) -> dict[str, object]:
    """Say what is in a store, from the headers of its records. A server may be using it."""
    root = _root(place)
    check_format("PLACE", root)
    ranks = [_inspect_rank(folder) for folder in rank_folders(root)]
    namespaces = [namespace for rank in ranks for namespace in rank.pop("namespaces")]  # type: ignore[attr-defined]
    return {
        "type": "disk",
        "place": str(root),
        "format": stored_format(root),
        "records": sum(namespace["records"] for namespace in namespaces),
        "bytes": sum(namespace["bytes"] for namespace in namespaces),
        "ranks": ranks,
        "namespaces": namespaces,
    }


def verify(place: str, _options: Mapping[str, object], progress: Progress) -> Verified:
    """Read every record and compare checksums; needs no encryption key. Changes nothing."""
    root = _root(place)
    check_format("PLACE", root)
    with _locked(root) as folders:
        segments = [segment for folder in folders for segment in find_segments(folder.path)]
        total = sum(segment.cost_bytes for segment in segments)
        done = records = size = corrupt_count = 0
        corrupt: list[str] = []
        for segment in segments:
            for header, entry, good in _verified(segment):
                records += 1
                size += header.length if header is not None else 0
                if not good:
                    corrupt_count += 1
                    key = header.key.hex() if header is not None else "unreadable header"
                    corrupt.append(f"{key} in {segment.path}, record {entry}")
            done += segment.cost_bytes
            progress(done, total)
    return Verified(records, size, tuple(corrupt[:_NAMED_MAX]), corrupt_count)


def clear(place: str, _options: Mapping[str, object], progress: Progress) -> int:
    """Remove all that is kvtide's in a folder, whatever its format; return the number of records."""
    root = _root(place)
    removed = 0
    with _locked(root) as folders:
        for done, folder in enumerate(folders, start=1):
            removed += sum(len(list(_headers(segment))) for segment in find_segments(folder.path))
            empty(folder.path)
            progress(done, len(folders))
    for name in (FORMAT_NAME, "lock"):
        (root / name).unlink(missing_ok=True)
    return removed


class _locked(ExitStack):  # noqa: N801 - used as a statement
    """Keeps servers out of all ranks' folders."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __enter__(self) -> list[RankFolder]:  # type: ignore[override]
        folders = list(rank_folders(self._root))
        try:
            for folder in [self._root, *(folder.path for folder in folders)]:
                self.enter_context(FolderLock(folder))
        except Held as held:
            self.close()
            raise in_use("PLACE", self._root, held.pid) from None
        return folders


def _root(place: str) -> Path:
    root = Path(place).expanduser()
    if not root.is_dir():
        raise ConfigError("PLACE", place, "a folder that exists")
    if stored_format(root) is None:
        raise ConfigError("PLACE", place, f"the folder of a disk tier, and there is no {FORMAT_NAME} in it")
    return root.resolve()


def _inspect_rank(folder: RankFolder) -> dict[str, object]:
    manifests = read_manifests(folder.path)
    found: dict[bytes, dict[str, object]] = {
        digest: {"manifest": manifest, "records": 0, "bytes": 0} for digest, manifest in manifests.items()
    }
    taken = segments = 0
    for segment in find_segments(folder.path):
        segments += 1
        taken += segment.cost_bytes
        headers = [header for _, header in _headers(segment) if header is not None]
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
        "disk_bytes": taken,
        "namespaces": list(found.values()),
    }


def _headers(segment: Found) -> Iterator[tuple[int, Header | None]]:
    """Read a segment's table; yields entries that are not empty, None for those that do not verify."""
    if segment.owner is None:
        return
    with segment.path.open("rb") as file:
        file.seek(PAGE)
        table = file.read(segment.owner.layout.table_bytes)
    for entry in range(segment.owner.layout.capacity):
        raw = table[entry * HEADER_BYTES : (entry + 1) * HEADER_BYTES]
        if not any(raw):
            continue
        header = unpack(raw)
        stale = header is not None and header.sequence != segment.owner.first_sequence + entry
        if not stale:
            yield entry, header


def _verified(segment: Found) -> Iterator[tuple[Header | None, int, bool]]:
    with segment.path.open("rb", buffering=0) as file:
        for entry, header in _headers(segment):
            if header is None:
                yield None, entry, False
                continue
            body = memoryview(bytearray(header.length))
            count = read_all(file.fileno(), [body] if header.length else [], header.place * PAGE)
            yield header, entry, count == header.length and checksum_of(body) == header.checksum
