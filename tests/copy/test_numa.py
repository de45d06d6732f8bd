"""Memory that is to come from a node, and where it came from."""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvtide.copy import HostArena, libc, numa

FORBIDDEN = (errno.EPERM, errno.ENOSYS)
"""What a container without CAP_SYS_NICE or a kernel without NUMA answers."""


class FakeSystem:
    """Keeps calls instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = 0, machine: str = "x86_64") -> None:
        self.calls: list[tuple[int, ...]] = []
        self.masks: list[list[int]] = []
        self.error = error
        monkeypatch.setattr(numa, "_syscall", self.call)
        monkeypatch.setattr(platform, "machine", lambda: machine)

    def call(self, number: int, *arguments: int) -> int:
        self.calls.append((number, *arguments))
        if number in (235, 237):
            words = (arguments[4] - 1) // 64
            self.masks.append(list((ctypes.c_ulong * words).from_address(arguments[3])))
        ctypes.set_errno(self.error)
        return -1 if self.error else 0


def policy_at(address: int) -> tuple[int, int]:
    """Ask the kernel for the policy of an address and the first nodes of its mask."""
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    arguments = (ctypes.addressof(mode), ctypes.addressof(mask), 1025, address, 2)
    assert libc.load().syscall(numa._GET_MEMPOLICY[platform.machine()], *map(ctypes.c_ulong, arguments)) == 0
    return mode.value, mask[0]


def allowed(call: Callable[[], object]) -> bool:
    """Make a call; return whether the kernel lets us. Nothing else may go wrong."""
    try:
        call()
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        return False
    return True


def test_the_kernel_takes_the_policy_for_a_whole_arena_or_forbids_it() -> None:
    with HostArena(slots=5, slot_bytes=1_000_001) as arena:
        first, nbytes = int(arena.memory.ctypes.data), arena.memory.nbytes
        if allowed(lambda: numa.prefer_node(first, nbytes, 0)):
            assert policy_at(first) == policy_at(first + nbytes - 1) == (1, 1 << 0)


def test_the_kernel_says_where_a_page_came_from_or_forbids_it() -> None:
    page = np.ones(mmap.PAGESIZE, np.uint8)
    came_from: list[int] = []
    if allowed(lambda: came_from.append(numa.node_of(page.ctypes.data))):
        assert came_from[0] in numa.nodes()


def test_the_kernel_refuses_a_node_that_is_not_there() -> None:
    with HostArena(slots=1, slot_bytes=4096) as arena, pytest.raises(OSError, match=r"Invalid|permitted|implemented"):
        numa.prefer_node(arena.memory.ctypes.data, 4096, 1000)


@pytest.mark.parametrize(("node", "mask"), [(0, [1]), (1, [2]), (63, [1 << 63]), (64, [0, 1]), (70, [0, 1 << 6])])
def test_a_node_is_a_bit_of_the_mask(monkeypatch: pytest.MonkeyPatch, node: int, mask: list[int]) -> None:
    system = FakeSystem(monkeypatch)
    numa.prefer_node(0x7000, 4096, node)
    assert system.masks == [mask]
    number, address, nbytes, mode, _, bits, flags = system.calls[0]
    assert (number, address, nbytes, mode, bits, flags) == (237, 0x7000, 4096, 1, 64 * len(mask) + 1, 0)


@pytest.mark.parametrize(("nodes", "mask"), [({0, 1}, [3]), ({1, 64}, [2, 1])])
def test_several_nodes_are_several_bits_and_take_turns(
    monkeypatch: pytest.MonkeyPatch, nodes: set[int], mask: list[int]
) -> None:
    system = FakeSystem(monkeypatch)
    numa.interleave_nodes(0x7000, 4096, nodes)
    assert system.masks == [mask]
    assert system.calls[0][:4] == (237, 0x7000, 4096, 3)


def test_calls_have_other_numbers_on_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    system = FakeSystem(monkeypatch, machine="aarch64")
    numa.prefer_node(0x7000, 4096, 0)
    numa.node_of(0x7000)
    assert [call[0] for call in system.calls] == [235, 236]


def test_a_machine_whose_numbers_are_not_known_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    system = FakeSystem(monkeypatch, machine="riscv64")
    with pytest.raises(OSError, match="not implemented"):
        numa.prefer_node(0x7000, 4096, 0)
    assert not system.calls


def test_what_the_kernel_forbids_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSystem(monkeypatch, error=errno.EPERM)
    with pytest.raises(PermissionError):
        numa.prefer_node(0x7000, 4096, 0)
    with pytest.raises(PermissionError):
        numa.node_of(0x7000)


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), (None, None)])
def test_the_node_of_a_device_is_what_the_system_says(tmp_path: Path, text: str | None, node: int | None) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    if text is not None:
        (device / "numa_node").write_text(text)
    assert numa.node_of_device("0000:3b:00.0", tmp_path) == node


@pytest.mark.parametrize(("text", "cpus"), [("0-2,8,20-21\n", {0, 1, 2, 8}), ("\n", set()), (None, set())])
def test_the_cpus_of_a_device_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, cpus: set[int]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(10)))
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    if text is not None:
        (device / "local_cpulist").write_text(text)
    assert numa.cpus_of_device("0000:3b:00.0", tmp_path) == cpus


@pytest.mark.parametrize(("text", "found"), [("0\n", {0}), ("0-1\n", {0, 1}), ("0,2-3\n", {0, 2, 3}), ("x", set())])
def test_nodes_are_read_as_the_kernel_writes_them(tmp_path: Path, text: str, found: set[int]) -> None:
    (tmp_path / "sys/devices/system/node").mkdir(parents=True)
    (tmp_path / "sys/devices/system/node/online").write_text(text)
    assert numa.nodes(tmp_path) == found


def test_a_machine_that_does_not_tell_its_nodes_has_none(tmp_path: Path) -> None:
    assert numa.nodes(tmp_path) == set()


def test_lists_are_read_as_the_kernel_writes_them() -> None:
    assert numa.parse_list("0-2,8,20-21\n") == {0, 1, 2, 8, 20, 21}
    assert numa.parse_list("\n") == frozenset()
