from __future__ import annotations

import mmap

import pytest

from kvtide.copy import HostArena, arena
from kvtide.copy.memory_left import MemoryLeft
from kvtide.errors import ConfigError, CopyError


def test_slots_are_rows_of_zero_bytes_that_can_be_written() -> None:
    with HostArena(slots=3, slot_bytes=5) as host:
        assert host.memory.shape == (3, 5)
        assert not host.memory.any()
        host.memory[2] = 9
        assert host.memory.sum() == 45


def test_the_memory_of_a_closed_arena_cannot_be_reached() -> None:
    host = HostArena(slots=3, slot_bytes=5)
    host.close()
    host.close()
    with pytest.raises(CopyError, match="closed"):
        _ = host.memory


def test_a_view_that_outlives_the_arena_stays_valid() -> None:
    host = HostArena(slots=3, slot_bytes=5)
    view = host.memory
    host.close()
    view[1] = 3
    assert view.sum() == 15


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 8), (8, 0), (-1, 8), (True, 8), (8, 1.5)])
def test_sizes_that_make_no_sense_are_refused(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ConfigError, match="slot"):
        HostArena(slots, slot_bytes)


@pytest.mark.parametrize("slots", [1 << 40, 1 << 80])
def test_more_memory_than_the_machine_has_is_refused_before_it_is_used(slots: int) -> None:
    with pytest.raises(ConfigError, match="host"):
        HostArena(slots, slot_bytes=4096)


def test_a_mapping_that_fails_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ConfigError, match="Cannot allocate memory"):
        HostArena(4, 4)


def test_the_limit_of_the_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    left = MemoryLeft(1000, "are left of the 4000 in /sys/fs/cgroup/app/memory.max")
    monkeypatch.setattr(arena, "memory_left", lambda: left)
    with pytest.raises(ConfigError, match=r"host=1010: .* at most the 1000 bytes .* of the 4000 in .*/app/memory.max"):
        HostArena(slots=10, slot_bytes=101)
    HostArena(slots=10, slot_bytes=100).close()
