from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.copy import DeviceCache, Direction, HostArena, Region, regions_of
from kvtide.copy.move import BlockMover
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError


def test_a_slot_is_the_fragments_of_a_block_in_region_order() -> None:
    keys = np.arange(12, dtype=np.uint8).reshape(4, 3)
    values = np.arange(100, 108, dtype=np.uint8).reshape(4, 2)
    cache = DeviceCache([Region(keys, 3, 3), Region(values, 2, 2)], blocks=4)
    with HostArena(2, cache.block_bytes) as arena:
        BlockMover(cache, arena).move(Direction.STORE, Copy(1, (3,), (1,)))
        assert arena.memory.tolist() == [[0] * 5, [9, 10, 11, 106, 107]]


def test_the_regions_of_an_array_are_its_leading_axes() -> None:
    cache = np.arange(3 * 2 * 4 * 5, dtype=np.float32).reshape(3, 2, 4, 5)
    device = DeviceCache(regions_of(cache, block_axis=2), blocks=4)
    assert len(device.regions) == 6
    assert device.block_bytes == 6 * 5 * 4
    with HostArena(1, device.block_bytes) as arena:
        BlockMover(device, arena).move(Direction.STORE, Copy(1, (2,), (0,)))
        assert arena.memory[0].tobytes() == cache[:, :, 2].tobytes()


@pytest.mark.parametrize("block_axis", [0, 1, 2])
def test_evenly_spaced_regions_of_one_array_are_copied_together(block_axis: int) -> None:
    array = np.zeros((3, 4, 5), np.float16)
    blocks = array.shape[block_axis]
    assert len(DeviceCache(regions_of(array, block_axis), blocks=blocks).spans) == 1


@given(data=st.data())
def test_whatever_regions_share_a_buffer_the_bytes_are_those_of_the_definition(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(1, 5), "blocks")
    memory = np.arange(400, dtype=np.int64).astype(np.uint8)
    regions = []
    for _ in range(data.draw(st.integers(1, 5), "regions")):
        fragment = data.draw(st.integers(1, 6))
        stride = fragment + data.draw(st.sampled_from([0, 0, 1, 20]))
        longest = (blocks - 1) * stride + fragment
        regions.append(Region(memory, stride, fragment, data.draw(st.integers(0, 400 - longest))))
    cache = DeviceCache(regions, blocks=blocks)
    with HostArena(blocks, cache.block_bytes) as arena:
        order = data.draw(st.permutations(range(blocks)), "slots")
        BlockMover(cache, arena).move(Direction.STORE, Copy(1, tuple(range(blocks)), tuple(order)))
        for block, slot in enumerate(order):
            begins = [(r.offset + block * r.block_stride, r.fragment_bytes) for r in regions]
            expected = b"".join(memory[begin : begin + size].tobytes() for begin, size in begins)
            assert arena.memory[slot].tobytes() == expected


@pytest.mark.parametrize("buffer", [bytearray(64), memoryview(bytearray(64)), mmap.mmap(-1, 64), np.zeros(8)])
def test_any_writable_buffer_will_do(buffer: bytearray) -> None:
    cache = DeviceCache([Region(buffer, 16, 16)], blocks=4)
    with HostArena(1, 16) as arena:
        arena.memory[0] = 7
        BlockMover(cache, arena).move(Direction.LOAD, Copy(1, (2,), (0,)))
    content = bytes(memoryview(buffer).cast("B"))
    assert content == bytes(32) + bytes([7] * 16) + bytes(16)


@pytest.mark.parametrize(
    ("option", "stride", "fragment", "offset"),
    [
        ("fragment_bytes", 8, 0, 0),
        ("fragment_bytes", 8, -8, 0),
        ("block_stride", 0, 8, 0),
        ("block_stride", 7, 8, 0),
        ("offset", 8, 8, -1),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(option: str, stride: int, fragment: int, offset: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Region(np.zeros(64, np.uint8), stride, fragment, offset)
    assert caught.value.option == option


@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param(b"read only", id="bytes"),
        pytest.param(np.broadcast_to(np.uint8(1), 8), id="broadcast"),
        pytest.param(np.zeros((4, 4), np.uint8)[:, :2], id="strided"),
        pytest.param(np.zeros((4, 4), np.uint8, order="F"), id="fortran"),
        pytest.param(memoryview(bytearray(16))[::2], id="strided-memoryview"),
        pytest.param(memoryview(b"read only"), id="read-only-memoryview"),
        pytest.param("text", id="no-buffer"),
    ],
)
def test_memory_that_cannot_be_copied_to_is_refused(buffer: bytearray) -> None:
    with pytest.raises(ConfigError) as caught:
        Region(buffer, 1, 1)
    assert caught.value.option == "buffer"


def test_a_read_only_array_is_refused() -> None:
    array = np.zeros(16, np.uint8)
    array.flags.writeable = False
    with pytest.raises(ConfigError, match="writable"):
        Region(array, 4, 4)


def test_the_last_fragment_must_end_inside_the_buffer() -> None:
    fits = Region(np.zeros(30, np.uint8), block_stride=10, fragment_bytes=8, offset=2)
    DeviceCache([fits], blocks=3)
    with pytest.raises(ConfigError, match=r"regions\[1\]\.buffer.*at least 40 bytes for 4 blocks"):
        DeviceCache([Region(np.zeros(80, np.uint8), 8, 8), fits], blocks=4)


def test_a_cache_without_regions_or_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="regions"):
        DeviceCache([], blocks=1)
    with pytest.raises(ConfigError, match="blocks"):
        DeviceCache([Region(np.zeros(8, np.uint8), 8, 8)], blocks=0)


def test_an_axis_that_the_array_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_axis=2"):
        regions_of(np.zeros((4, 4)), block_axis=2)
