"""Which bytes go where, for one transfer, in arrays: nothing here loops over blocks or fragments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.ids import Ids, checked_ids
from kvtide.core.messages import Copy
from kvtide.errors import CopyError

_ZERO = np.zeros(1, dtype=np.int64)


class Ranges(NamedTuple):
    """Pieces of memory to copy: `size[i]` bytes between `device[i]` and `host[i]`, in either direction."""

    device: Ids
    host: Ids
    size: Ids


def checked_pairs(copy: Copy, *, blocks: int, slots: int, usable_slots: int) -> tuple[Ids, Ids]:
    """Return a transfer's blocks and slots, ordered by slot so that neighbours on the host are found.

    Raises CopyError where one does not exist or has no pinned memory yet.
    """
    block_ids, slot_ids = checked_ids(copy, blocks=blocks, slots=slots)
    if len(slot_ids) and (last := int(slot_ids.max())) >= usable_slots:
        raise CopyError(f"slot {last} is not pinned: {usable_slots} of {slots} slots are usable so far")
    if (slot_ids[1:] > slot_ids[:-1]).all():
        return block_ids, slot_ids
    order = np.argsort(slot_ids)
    return block_ids[order], slot_ids[order]


def chunks(pairs: int, rows_max: int) -> list[int]:
    """Return where parts of about equal length begin, none longer than `rows_max`, and where the last one ends."""
    count = -(-pairs // rows_max)
    return [pairs * index // max(1, count) for index in range(count + 1)]


def slot_ranges(slots: Ids, slot_bytes: int, piece_bytes: int, bounds: Sequence[int] = (), *, begin: int = 0) -> Ranges:
    """Return the copies between rows (from 0) and slots (from 0), one for each run of slots.

    `bounds` are rows at which no copy goes on; `begin` is where slot 0 is in memory.
    """
    begins = np.flatnonzero(slots[1:] - slots[:-1] != 1) + 1
    inside = np.array(bounds[1:-1], dtype=np.int64)
    starts = np.unique(np.concatenate([_ZERO, begins, inside])) if len(begins) else np.concatenate([_ZERO, inside])
    ends = np.append(starts[1:], len(slots))
    return _split(
        Ranges(starts * slot_bytes, begin + slots[starts] * slot_bytes, (ends - starts) * slot_bytes), piece_bytes
    )


def chunked(ranges: Ranges, slot_bytes: int, bounds: Sequence[int]) -> list[Ranges]:
    """Cut ranges of `slot_ranges` into those of each chunk, with rows counted from the chunk's first."""
    begins = np.array(bounds, dtype=np.int64) * slot_bytes
    at = np.searchsorted(ranges.device, begins).tolist()
    parts = zip(begins.tolist(), pairwise(at), strict=False)
    return [Ranges(ranges.device[a:z] - row, ranges.host[a:z], ranges.size[a:z]) for row, (a, z) in parts]


def turns(sizes: Ids, turn_bytes: int) -> list[slice]:
    """Return consecutive parts of a list of copies, each of at least one copy and otherwise of at most `turn_bytes`."""
    if int(sizes.sum()) <= turn_bytes:
        return [slice(0, len(sizes))]
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(sizes):
        before = int(ends[cuts[-1] - 1]) if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, before + turn_bytes, side="right"))))
    return [slice(first, last) for first, last in pairwise(cuts)]


def fragment_ranges(cache: CudaCache, blocks: Ids, slots: Ids, piece_bytes: int) -> Ranges:
    """Return the copies between fragments (addresses) and slots (from 0), joined where both sides go on."""
    address = np.array([region.address for region in cache.regions], dtype=np.int64)
    stride = np.array([region.block_stride for region in cache.regions], dtype=np.int64)
    size = np.array([region.fragment_bytes for region in cache.regions], dtype=np.int64)
    device = (address + blocks[:, None] * stride).ravel()
    host = (cache.slot_offsets + slots[:, None] * cache.block_bytes).ravel()
    sizes = np.broadcast_to(size, (len(blocks), len(size))).ravel()
    goes_on = (device[1:] == device[:-1] + sizes[:-1]) & (host[1:] == host[:-1] + sizes[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    return _split(Ranges(device[starts], host[starts], np.add.reduceat(sizes, starts)), piece_bytes)


def _split(ranges: Ranges, piece_bytes: int) -> Ranges:
    """Cut ranges where a piece of pinned memory ends: one copy must not reach over two registrations."""
    first, last = ranges.host // piece_bytes, (ranges.host + ranges.size - 1) // piece_bytes
    parts = last - first + 1
    if (parts == 1).all():
        return ranges
    whole = np.repeat(np.arange(len(parts)), parts)
    piece = first[whole] + np.arange(len(whole)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin = np.maximum(ranges.host[whole], piece * piece_bytes)
    end = np.minimum((ranges.host + ranges.size)[whole], (piece + 1) * piece_bytes)
    return Ranges(ranges.device[whole] + begin - ranges.host[whole], begin, end - begin)
