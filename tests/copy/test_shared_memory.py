"""Memory that several processes map."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import HostArena, arena, shared_memory
from kvtide.copy.memory_left import MemoryLeft
from kvtide.errors import ConfigError, CopyError
from tests.left_behind import Before

OTHER = """
import sys, time
from kvtide.copy import HostArena, shared_memory
offer = shared_memory.make(3 * 5)
host = HostArena(3, 5, file=offer.descriptor)
host.memory[1] = 7
print(offer.process, offer.descriptor, *offer.identity, flush=True)
sys.stdin.read()
"""
"""Another process that makes memory, and lives until nobody speaks to it any more."""


@contextmanager
def other_process() -> Iterator[tuple[subprocess.Popen[str], shared_memory.Offer]]:
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 (ours)
        assert process.stdout is not None
        pid, descriptor, device, inode = map(int, process.stdout.readline().split())
        yield process, shared_memory.Offer(pid, descriptor, (device, inode), 15)
        process.kill()


def mapped(offer: shared_memory.Offer) -> HostArena:
    file = shared_memory.find(offer)
    try:
        return HostArena(3, 5, file=file)
    finally:
        os.close(file)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:kvtide")


def test_two_processes_have_the_same_bytes() -> None:
    with other_process() as (_, offer), mapped(offer) as host:
        assert host.shared
        assert host.memory[:, 0].tolist() == [0, 7, 0]
        with mapped(offer) as again:
            host.memory[2] = 9
            assert again.memory[:, 0].tolist() == [0, 7, 9]


def test_it_outlives_the_process_that_made_it_and_is_gone_with_the_last() -> None:
    before = mappings()
    with other_process() as (process, offer):
        host = mapped(offer)
        process.kill()
        process.wait()
        host.memory[0] = 5
        assert host.memory[:, 0].tolist() == [5, 7, 0]
        assert mappings() == before + 1
        host.close()
        assert mappings() == before


def test_it_has_no_name_in_a_file_system() -> None:
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()  # noqa: S108 (looked at)
    offer = shared_memory.make(1 << 20)
    assert os.fstat(offer.descriptor).st_nlink == 0
    assert not Path("/dev/shm").exists() or set(Path("/dev/shm").iterdir()) <= before  # noqa: S108 (looked at)
    os.close(offer.descriptor)


def test_what_is_not_there_cannot_be_found() -> None:
    with other_process() as (process, offer):
        with pytest.raises(CopyError, match="cannot be opened"):
            shared_memory.find(replace(offer, descriptor=1000))
        process.kill()
        process.wait()
        with pytest.raises(CopyError, match=f"the memory of process {offer.process} cannot be opened"):
            shared_memory.find(offer)


@pytest.mark.parametrize("wrong", [{"identity": (0, 0)}, {"nbytes": 16}])
def test_memory_of_somebody_else_with_the_same_numbers_is_not_taken(wrong: dict[str, Any]) -> None:
    offer = shared_memory.make(15)
    before = Before()
    with pytest.raises(CopyError, match="another machine, or in another container"):
        shared_memory.find(replace(offer, **wrong))
    assert before.new_descriptors == []
    os.close(offer.descriptor)


def test_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "memory_left", lambda: MemoryLeft(1000, "this machine has left"))
    with pytest.raises(ConfigError, match="at most the 1000 bytes that this machine has left"):
        shared_memory.make(1001)
    os.close(shared_memory.make(1000).descriptor)


def test_who_maps_what_another_has_made_is_not_asked_for_memory_again(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = shared_memory.make(15)
    monkeypatch.setattr(arena, "memory_left", lambda: MemoryLeft(0, "this machine has left"))
    with HostArena(3, 5, file=offer.descriptor) as host:
        assert host.memory.nbytes == 15
    os.close(offer.descriptor)


def test_memory_that_is_too_short_is_not_mapped() -> None:
    offer = shared_memory.make(15)
    with pytest.raises(ConfigError, match="host"):
        HostArena(4, 5, file=offer.descriptor)
    os.close(offer.descriptor)


def test_memory_that_cannot_be_made_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="host"):
        shared_memory.make(-1)


def test_memory_of_a_file_is_mapped_where_its_huge_pages_fit_and_unmapped_whole() -> None:
    offer = shared_memory.make(3 << 20)
    host = HostArena(3, 1 << 20, file=offer.descriptor)
    os.close(offer.descriptor)
    assert host.address % (2 << 20) == 0
    addresses = [host.address, host.address + (3 << 20) - 1]
    assert all(map(is_mapped, addresses))
    host.close()
    assert not any(map(is_mapped, addresses))


def is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(first, 16) <= address < int(last, 16) for first, last in ranges)
