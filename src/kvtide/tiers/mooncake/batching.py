"""Two ways to carry records between memory and the store: copied together, or in two pieces.

A record is a header and a body. The client takes values in pieces, but each piece costs it a round trip of its own:
for small values the copy is cheaper, for large ones the pieces are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvtide.tiers.base import Item
from kvtide.tiers.mooncake.staging import Region, address_of
from kvtide.tiers.mooncake.transfers import Transfers
from kvtide.tiers.record import HEADER_BYTES, Sealed


class Arrived(NamedTuple):
    """A value that was asked for."""

    status: int
    """Its length, or below 0 why there is none."""
    header: memoryview
    body: memoryview
    """In the region, or the memory itself that it was asked for."""


def put_together(
    store: Transfers, region: Region, names: Sequence[str], items: Sequence[Item], seal: Callable[..., Sealed]
) -> Sequence[int]:
    """Write records by way of the region. A block is copied first and sealed there, while it is in the cache."""
    sizes = [HEADER_BYTES + item.buffer.nbytes for item in items]
    first = 0
    for (key, buffer), size in zip(items, sizes, strict=True):
        place = region.memory[first + HEADER_BYTES : first + size]
        place[:] = buffer.cast("B")
        header, body = seal(key, place)
        if body is not place:  # it was encrypted, elsewhere
            place[:] = body.cast("B")
        region.memory[first : first + HEADER_BYTES] = header
        first += size
    statuses: Sequence[int] = store.batch_put_from(names, _places(region, sizes), sizes)
    return statuses


def put_in_pieces(
    store: Transfers, region: Region, names: Sequence[str], items: Sequence[Item], seal: Callable[..., Sealed]
) -> Sequence[int]:
    """Write records, bodies from where they are."""
    records = [seal(*item) for item in items]
    for index, record in enumerate(records):
        region.memory[index * HEADER_BYTES : (index + 1) * HEADER_BYTES] = record.header
    pieces = _pieces(region, [record.body for record in records])
    statuses: Sequence[int] = store.batch_put_from_multi_buffers(names, *pieces)
    return statuses


def get_together(store: Transfers, region: Region, names: Sequence[str], bodies: Sequence[memoryview]) -> list[Arrived]:
    """Read records into the region."""
    sizes = [HEADER_BYTES + body.nbytes for body in bodies]
    statuses = store.batch_get_into(names, _places(region, sizes), sizes)
    arrived = []
    first = 0
    for status, size in zip(statuses, sizes, strict=True):
        record = region.memory[first : first + size]
        arrived.append(Arrived(status, record[:HEADER_BYTES], record[HEADER_BYTES:]))
        first += size
    return arrived


def get_in_pieces(
    store: Transfers, region: Region, names: Sequence[str], bodies: Sequence[memoryview]
) -> list[Arrived]:
    """Read records, bodies to where they are wanted."""
    statuses = store.batch_get_into_multi_buffers(names, *_pieces(region, bodies))
    headers = [region.memory[index * HEADER_BYTES : (index + 1) * HEADER_BYTES] for index in range(len(names))]
    return [Arrived(*each) for each in zip(statuses, headers, bodies, strict=True)]


def _places(region: Region, sizes: Sequence[int]) -> list[int]:
    places, first = [], region.address
    for size in sizes:
        places.append(first)
        first += size
    return places


def _pieces(region: Region, bodies: Sequence[memoryview]) -> tuple[list[list[int]], list[list[int]]]:
    places = [[region.address + index * HEADER_BYTES, address_of(body)] for index, body in enumerate(bodies)]
    return places, [[HEADER_BYTES, body.nbytes] for body in bodies]
