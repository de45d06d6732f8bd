from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.ranges import Ranges, checked_pairs, chunked, chunks, fragment_ranges, slot_ranges, turns
from kvtide.core.messages import Copy
from kvtide.errors import CopyError

SLOT_LISTS = st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True)


def _bytes(ranges: Ranges) -> dict[int, int]:
    """Which host byte goes with which device byte."""
    pairs = {}
    for device, host, size in zip(*(array.tolist() for array in ranges), strict=True):
        for i in range(size):
            assert host + i not in pairs
            pairs[host + i] = device + i
    return pairs


@given(
    slots=SLOT_LISTS,
    slot_bytes=st.integers(1, 9),
    piece_bytes=st.sampled_from([1, 4, 10, 1000]),
    begin=st.sampled_from([0, 0, 3, 17]),
)
def test_rows_of_a_buffer_meet_their_slots(slots: list[int], slot_bytes: int, piece_bytes: int, begin: int) -> None:
    ranges = slot_ranges(np.array(sorted(slots)), slot_bytes, piece_bytes, begin=begin)
    expected = {
        begin + slot * slot_bytes + i: row * slot_bytes + i
        for row, slot in enumerate(sorted(slots))
        for i in range(slot_bytes)
    }
    assert _bytes(ranges) == expected
    assert np.all(ranges.host // piece_bytes == (ranges.host + ranges.size - 1) // piece_bytes)


@given(
    slots=SLOT_LISTS,
    fragments=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    piece_bytes=st.sampled_from([1, 7, 1000]),
    data=st.data(),
)
def test_fragments_meet_their_place_in_the_slots(
    slots: list[int], fragments: list[int], piece_bytes: int, data: st.DataObject
) -> None:
    regions = [CudaRegion(10_000 * (i + 1), size + i, size) for i, size in enumerate(fragments)]
    cache = CudaCache(regions, blocks=61)
    blocks = data.draw(st.permutations(range(61)))[: len(slots)]
    slots = sorted(slots)
    expected = {}
    for block, slot in zip(blocks, slots, strict=True):
        at = slot * cache.block_bytes
        for region in regions:
            for i in range(region.fragment_bytes):
                expected[at + i] = region.address + block * region.block_stride + i
            at += region.fragment_bytes
    assert _bytes(fragment_ranges(cache, np.array(blocks), np.array(slots), piece_bytes)) == expected


@given(slots=SLOT_LISTS, slot_bytes=st.integers(1, 9), rows_max=st.integers(1, 50))
def test_the_rows_of_each_chunk_meet_their_slots(slots: list[int], slot_bytes: int, rows_max: int) -> None:
    slots = sorted(slots)
    bounds = chunks(len(slots), rows_max)
    parts = chunked(slot_ranges(np.array(slots), slot_bytes, 10, bounds), slot_bytes, bounds)
    for (first, last), part in zip(pairwise(bounds), parts, strict=True):
        assert _bytes(part) == _bytes(slot_ranges(np.array(slots[first:last]), slot_bytes, 10))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), turn_bytes=st.integers(1, 20))
def test_turns_cover_all_copies_and_are_short(sizes: list[int], turn_bytes: int) -> None:
    parts = [sizes[turn] for turn in turns(np.array(sizes), turn_bytes)]
    assert [size for part in parts for size in part] == sizes
    assert all(len(part) == 1 or 0 < sum(part) <= turn_bytes for part in parts)


def test_slots_in_a_row_are_one_copy_whatever_the_order_of_the_transfer() -> None:
    copy = Copy(1, (7, 8, 9, 1), (5, 3, 4, 9))
    blocks, slots = checked_pairs(copy, blocks=10, slots=10, usable_slots=10)
    assert (blocks.tolist(), slots.tolist()) == ([8, 9, 7, 1], [3, 4, 5, 9])
    ranges = slot_ranges(slots, 10, 1000)
    assert [array.tolist() for array in ranges] == [[0, 30], [30, 90], [30, 10]]


def test_blocks_and_slots_in_a_row_are_one_copy_when_a_block_is_one_fragment() -> None:
    cache = CudaCache([CudaRegion(1000, 10, 10)], blocks=10)
    ranges = fragment_ranges(cache, np.array([3, 4, 5, 7]), np.array([0, 1, 2, 3]), 1000)
    assert [array.tolist() for array in ranges] == [[1030, 1070], [0, 30], [30, 10]]


@given(pairs=st.integers(0, 100), rows_max=st.integers(1, 40))
def test_chunks_cover_all_pairs_and_none_is_much_smaller_than_another(pairs: int, rows_max: int) -> None:
    bounds = chunks(pairs, rows_max)
    assert (bounds[0], bounds[-1]) == (0, pairs)
    sizes = [last - first for first, last in pairwise(bounds)]
    assert all(0 < size <= rows_max for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("copy", "why"),
    [
        (Copy(1, (0, 1), (0,)), "2 blocks for 1 slots"),
        (Copy(1, (10,), (0,)), "block 10 does not exist: there are 10"),
        (Copy(1, (-1,), (0,)), "block -1 does not exist"),
        (Copy(1, (0,), (8,)), "slot 8 does not exist: there are 8"),
        (Copy(1, (0, 1), (2, 5)), "slot 5 is not pinned: 4 of 8 slots are usable so far"),
    ],
)
def test_what_does_not_exist_or_is_not_pinned_yet_is_refused(copy: Copy, why: str) -> None:
    with pytest.raises(CopyError, match=why):
        checked_pairs(copy, blocks=10, slots=8, usable_slots=4)
