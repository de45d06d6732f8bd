"""What operators do with a server: look at what is kvtide's there, verify it, remove it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from valkey.exceptions import ResponseError

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.tiers.admin import Progress, Verified
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.batches import batches
from kvtide.tiers.record import HEADER_BYTES, checksum_of, unpack
from kvtide.tiers.valkey.connection import Connection, good
from kvtide.tiers.valkey.manifests import read_manifests
from kvtide.tiers.valkey.names import NAMESPACES, PREFIX, RecordName, generation_names
from kvtide.tiers.valkey.options import parse_access
from kvtide.tiers.valkey.protocol import Reply

_SILENCE_S = 5.0
"""Operators wait longer than requests."""
_PAGE = b"1000"
_READ_AT_ONCE = 8
_SHOWN_MAX = 100


def inspect(place: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return what is there. Records of a generation that was cleared count as `cleared`: nobody reads them."""
    found: dict[bytes, list[int]] = defaultdict(lambda: [0, 0])
    cleared = [0, 0]
    with _server(place, options) as connection:
        manifests = read_manifests(connection)
        current = _generations(connection, list(manifests))
        for page in _pages(connection):
            for name, length in zip(page, _ask(connection, [(b"STRLEN", name.raw) for name in page]), strict=True):
                if isinstance(length, int):
                    count = (
                        found[name.digest] if current.get(name.digest, name.generation) == name.generation else cleared
                    )
                    count[0] += 1
                    count[1] += length
    return {
        "records": sum(records for records, _ in found.values()),
        "bytes": sum(size for _, size in found.values()),
        "cleared": {"records": cleared[0], "bytes": cleared[1]},
        "namespaces": [
            {"manifest": manifests.get(digest), "records": found[digest][0], "bytes": found[digest][1]}
            for digest in sorted({*manifests, *found})
        ],
    }


def verify(place: str, options: Mapping[str, object], progress: Progress) -> Verified:
    """Read every record and check it. Changes nothing."""
    records = size = bad = 0
    shown: list[str] = []
    with _server(place, options) as connection:
        for page in _pages(connection):
            for names in batches(page, count_max=_READ_AT_ONCE):
                for name, value in zip(names, _ask(connection, [(b"GET", name.raw) for name in names]), strict=True):
                    if value is None:
                        continue  # gone since its name was read
                    records += 1
                    size += len(value) if isinstance(value, bytes) else 0
                    if not _holds(name, value):
                        bad += 1
                        shown.append(f"{name.key.hex()} at {name.raw.decode()}")
                progress(size, None)
    return Verified(records, size, tuple(shown[:_SHOWN_MAX]), bad)


def clear(place: str, options: Mapping[str, object], progress: Progress) -> int:
    """Remove everything of kvtide's. Engines that run stop reading it with the first step, and begin anew."""
    removed = 0
    with _server(place, options) as connection:
        digests = {*read_manifests(connection), *(name.digest for page in _pages(connection) for name in page)}
        for some in batches(sorted(digests), count_max=1000):
            _ask(connection, [(b"UNLINK", *generation_names(digest)) for digest in some])
        for page in _pages(connection):
            if page:
                (count,) = _ask(connection, [(b"UNLINK", *(name.raw for name in page))])
                removed += count if isinstance(count, int) else 0
                progress(removed, None)
        _ask(connection, [(b"UNLINK", NAMESPACES)])
    return removed


@contextmanager
def _server(place: str, options: Mapping[str, object]) -> Iterator[Connection]:
    connection = Connection(parse_access(place, {name: str(value) for name, value in options.items()}), _SILENCE_S)
    try:
        yield connection
    except BackendDown as down:
        raise ConfigError("url", redacted(place), f"a server that can be used ({down})") from None
    finally:
        connection.close()


def _pages(connection: Connection) -> Iterator[list[RecordName]]:
    """Yield the names of all records, a page at a time; some pages are empty. A name may come twice."""
    cursor = b"0"
    while True:
        (page,) = _ask(connection, [(b"SCAN", cursor, b"MATCH", PREFIX + b"*:*:*", b"COUNT", _PAGE)])
        assert isinstance(page, list)
        cursor, names = page
        yield [name for name in map(RecordName.parse, names) if name is not None]
        if cursor == b"0":
            return


def _generations(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    seen = _ask(connection, [(b"MGET", *generation_names(digest)) for digest in digests])
    return {
        digest: copy
        for digest, copies in zip(digests, seen, strict=True)
        if isinstance(copies, list)
        for copy in copies
        if copy is not None
    }


def _ask(connection: Connection, commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    replies = connection.ask(commands)
    for reply in replies:
        if isinstance(reply, ResponseError) and not str(reply).startswith("WRONGTYPE"):
            good(reply)
    return replies


def _holds(name: RecordName, value: Reply) -> bool:
    if not isinstance(value, bytes):
        return False  # not even a string: someone else wrote it
    header, body = unpack(value[:HEADER_BYTES]), memoryview(value)[HEADER_BYTES:]
    if header is None:
        return False
    whose = header.namespace.hex().encode() == name.digest and header.key == name.key
    return whose and header.length == len(body) and header.checksum == checksum_of(body)
