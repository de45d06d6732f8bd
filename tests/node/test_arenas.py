"""Memory of the node: of a size that never changes, touched by the node, shared by whoever maps it."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kvtide.copy import numa
from kvtide.copy.cuda.pinning import Pinner
from kvtide.errors import CopyError
from kvtide.node import arenas, huge_pages, pages, touching
from kvtide.node.arenas import NodeArena
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription
from kvtide.node.mapped import MappedArena
from kvtide.units import size_text
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.test_numa import policy_at
from tests.left_behind import Before
from tests.node.support import no_threads, python, wait_until
from tests.not_tested import lacks


def resident_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_its_size_can_never_change() -> None:
    arena = NodeArena(0, 10, 1000)
    assert arena.description == ArenaDescription(0, 10, 1000, 3 * mmap.PAGESIZE)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    arena.close()


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program touch pages."""
    (folder / "program.py").write_text(f"import os, signal, sys, time\n{program}")
    monkeypatch.setattr(touching, "_PROGRAM", folder / "program.py")


def touch_one_and_wait(folder: Path, monkeypatch: pytest.MonkeyPatch, rest: int) -> Path:
    """Let one piece be touched, and the rest when there is the file that is returned."""
    go_on = folder / "go on"
    wait = f"while not os.path.exists({str(go_on)!r}):\n    time.sleep(0.01)\n"
    stand_in(folder, monkeypatch, f"os.write(1, b's')\n{wait}os.write(1, {rest} * b's')\n")
    return go_on


def test_it_is_touched_in_the_background_and_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = touch_one_and_wait(tmp_path, monkeypatch, rest=2)
    arena, ended = NodeArena(0, 10, 512 << 10), threading.Event()
    assert arena.ready_slots == 0
    arena.touch(ended.set)
    wait_until(lambda: arena.ready_slots == 4)
    assert not ended.is_set()
    go_on.touch()
    assert ended.wait(20)
    assert (arena.ready_slots, arena.failure) == (10, "")
    arena.close()


def test_touching_changes_nothing() -> None:
    arena = NodeArena(0, 10, 5000)
    arena.mapped.memory[0, :] = 7
    assert touched(arena).mapped.memory.sum() == 35_000
    arena.close()


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ('os.write(1, b"!Cannot allocate memory")', "Cannot allocate memory"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process that touches its pages has ended with -9"),
    ],
)
def test_memory_that_cannot_be_had_leaves_the_slots_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, why: str
) -> None:
    stand_in(tmp_path, monkeypatch, f"os.write(1, b'hss')\n{ends}")
    arena, ended = NodeArena(0, 10, pages.PIECE_BYTES), threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    assert (arena.ready_slots, arena.failure) == (3, why)
    arena.close()


def test_a_node_that_can_start_no_process_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Before()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    arena = NodeArena(0, 10, 1000)
    with pytest.raises(OSError, match="No such file"):
        arena.touch(lambda: None)
    before.check()


def test_f29_a_node_that_can_start_no_thread_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Before()
    arena = NodeArena(0, 10, 1000)
    with monkeypatch.context() as patched:
        no_threads(patched)
        with pytest.raises(OSError, match="can't start new thread"):
            arena.touch(lambda: None)
    before.check()


def test_the_program_ends_when_the_node_is_gone_and_not_when_it_is_asked_to() -> None:
    arena = NodeArena(0, 4096, 1 << 20)
    command = [sys.executable, "-I", "-S", pages.__file__, str(arena.descriptor), str(arena.description.nbytes)]
    reading, writing = os.pipe()
    with subprocess.Popen(command, stdout=writing, pass_fds=(arena.descriptor,)) as program:  # noqa: S603 (our own words)
        os.close(writing)
        assert os.read(reading, 1) == pages.SMALL
        program.terminate()
        os.close(reading)
        assert program.wait(20) == 0
    assert resident_bytes(arena.descriptor) < arena.description.nbytes
    arena.close()


def test_closing_stops_touching_and_leaves_nothing() -> None:
    before = Before()
    arena = NodeArena(0, 64, 1 << 20)
    arena.touch(lambda: None)
    arena.close()
    arena.close()
    before.check()


def test_no_slot_is_ready_before_all_that_is_in_front_of_them_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = touch_one_and_wait(tmp_path, monkeypatch, rest=3)
    arena, ended = NodeArena(0, 8, 512 << 10, row_bytes=3 << 20), threading.Event()
    assert arena.description.front_bytes == 2 * pages.PIECE_BYTES
    arena.touch(ended.set)
    wait_until(lambda: arena._touching.touched_bytes)
    assert arena.ready_slots == 0
    go_on.touch()
    assert ended.wait(20)
    assert arena.ready_slots == 8
    arena.close()


def test_rows_are_mapped_with_the_slots_by_whoever_has_the_descriptor() -> None:
    before = Before()
    arena = touched(NodeArena(0, 300, 1552, row_bytes=2048, numa_node=0))
    theirs = MappedArena(arena.descriptor, arena.description, follows=True)
    assert theirs.pages_there() >= 300 * 1552
    for one, other in ((arena.mapped, theirs), (theirs, arena.mapped)):
        assert one.unpacked is not None
        assert other.unpacked is not None
        one.unpacked.forget(np.arange(300))
        assert one.unpacked.place(np.array([7])) == []
        one.unpacked.arena.memory[:] = 3
        one.memory[:] = 4
        assert other.unpacked.rows_of(np.array([7, 8])).tolist() == [0, -1]
        assert (other.unpacked.arena.memory == 3).all()
        assert (other.memory == 4).all()
    theirs.close()
    arena.close()
    before.check()


def test_its_pages_come_from_the_node_that_was_asked_for_whoever_touches_them() -> None:
    first, last, preferred = 0, 3 * mmap.PAGESIZE, 1
    arena, other = NodeArena(0, 4, mmap.PAGESIZE, numa_node=0), NodeArena(0, 4, mmap.PAGESIZE)
    if arena.numa_failure:
        lacks("NUMA policies", "a system that allows mbind (in containers: CAP_SYS_NICE)")
    theirs = MappedArena(arena.descriptor, arena.description)  # as another process maps it
    for address in (arena.mapped.address, theirs.address):
        assert policy_at(address + first) == policy_at(address + last) == (preferred, 1 << 0)
    packed = NodeArena(0, 4, 1552, row_bytes=2048, numa_node=0)
    assert packed.mapped.unpacked is not None
    assert policy_at(packed.mapped.unpacked.arena.address) == policy_at(packed.mapped.address) == (preferred, 1 << 0)
    packed.close()
    assert policy_at(other.mapped.address) == (0, 0)
    assert touched(arena).described() == f"4 slots of {size_text(mmap.PAGESIZE)} of NUMA node 0"
    for each in (theirs, arena, other):
        each.close()


def test_a_node_that_is_not_there_is_said_and_costs_nothing_else() -> None:
    arena = NodeArena(0, 4, 1000, numa_node=900)
    assert arena.numa_failure
    assert "of any NUMA node (" in arena.described()
    assert arena.numa_node is None
    arena.close()


@pytest.mark.parametrize(
    ("machine", "asked", "described", "far_from_1"),
    [
        ({0}, None, "", ""),
        ({0, 1}, None, " of any NUMA node (its first worker does not say which)", "any NUMA node (its first worker"),
        ({0, 1}, 0, " of NUMA node 0", "NUMA node 0"),
        ({0, 1}, 1, " of NUMA node 1", ""),
        ({0, 1}, 2, " of any NUMA node (not that one)", "any NUMA node (not that one)"),
    ],
)
def test_where_there_are_several_numa_nodes_it_says_which_it_is_of_and_who_is_far(
    monkeypatch: pytest.MonkeyPatch, machine: set[int], asked: int | None, described: str, far_from_1: str
) -> None:
    def prefer(_at: int, _nbytes: int, node: int) -> None:
        if node not in machine:
            raise OSError(22, "not that one")

    monkeypatch.setattr(numa, "nodes", lambda: machine)
    monkeypatch.setattr(numa, "prefer_node", prefer)
    arena = NodeArena(0, 4, 1000, numa_node=asked)
    assert arena.described() == f"4 slots of 1000 bytes{described}"
    assert arena.far_from(1).startswith(f"memory of {far_from_1}" if far_from_1 else "")
    assert bool(arena.far_from(1)) == bool(far_from_1)
    assert arena.far_from(None) == "", "who does not know his own cannot be far"
    arena.close()


# ---------------------------------------------------------------------- pages


def machine(root: Path, *, free: int = 0, taken: int = 0, shared: str = "always within_size advise [never]") -> Path:
    folder = root / "sys/kernel/mm/hugepages/hugepages-2048kB"
    folder.mkdir(parents=True)
    (folder / "free_hugepages").write_text(f"{free}\n")
    (folder / "resv_hugepages").write_text(f"{taken}\n")
    (root / "sys/kernel/mm/transparent_hugepage").mkdir()
    (root / "sys/kernel/mm/transparent_hugepage/shmem_enabled").write_text(shared + "\n")
    return root


def test_huge_pages_are_what_is_set_aside_and_not_taken(tmp_path: Path) -> None:
    assert huge_pages.reserved_bytes(machine(tmp_path, free=5, taken=2)) == 6 << 20
    assert huge_pages.reserved_bytes(tmp_path / "nothing") == 0


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        ("always within_size advise [never] deny force", False),
        ("always within_size [advise] never deny force", True),
        ("[always] within_size advise never deny force", True),
        ("always within_size advise never [deny] force", False),
        ("", False),
    ],
)
def test_the_kernel_says_whether_it_makes_huge_pages(tmp_path: Path, shared: str, expected: bool) -> None:
    assert huge_pages.transparent(machine(tmp_path, shared=shared)) is expected


def test_without_huge_pages_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "transparent", lambda: False)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    arena = NodeArena(0, 4, 1000)
    assert arena.pages == "not touched yet"
    assert touched(arena).pages.startswith(
        "in small pages (for huge ones: `echo advise > /sys/kernel/mm/transparent_huge"
    )
    arena.close()


def test_with_huge_pages_its_size_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "transparent", lambda: True)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    arena = NodeArena(0, 4, 1000)
    assert arena.description.nbytes == 2 << 20
    assert arena.pages == "in huge pages"
    arena.close()


def touched(arena: NodeArena) -> NodeArena:
    ended = threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    assert (arena.failure, arena.ready_slots) == ("", arena.description.slots)
    assert resident_bytes(arena.descriptor) == arena.description.nbytes
    return arena


def pmd_mapped_kib(address: int) -> int:
    """How much of a mapping this process has in huge pages."""
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.startswith(f"{address:x}-"):
                return next(int(each.split()[1]) for each in lines if each.startswith("ShmemPmdMapped:"))
    raise AssertionError(f"nothing is mapped at {address:x}")


def test_it_has_huge_pages_where_the_kernel_can_be_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "transparent", lambda: False)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    arena = touched(NodeArena(0, 5, 1 << 20))
    assert not arena.mapped.memory.any()  # it is mapped by now
    assert (arena.pages == "in huge pages") == (pmd_mapped_kib(arena.mapped.address) == 4096)
    arena.close()


def touch(nbytes: int, *, huge: bool = True) -> tuple[bytes, int]:
    """Touch a file of this size in this process; return what was told, and how much of it is there."""
    descriptor, told = memory(nbytes), bytearray()
    pages.touch(descriptor, nbytes, told.extend, huge=huge)
    there = resident_bytes(descriptor)
    os.close(descriptor)
    return bytes(told), there


def test_the_kernel_is_asked_for_each_huge_page_and_what_is_left_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def agree(address: int) -> bool:
        pages._populate(address, pages.PIECE_BYTES)
        return True

    monkeypatch.setattr(pages, "_collapse", agree)
    assert touch(5 << 20) == (b"hhs", 5 << 20)
    assert touch(5 << 20, huge=False) == (b"sss", 5 << 20)


def test_a_kernel_that_has_no_huge_pages_left_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def refuse(address: int) -> bool:
        refused.append(address)
        return False

    monkeypatch.setattr(pages, "_collapse", refuse)
    assert touch(20 << 20) == (b"s" * 10, 20 << 20)
    assert len(refused) == 8


def test_on_older_kernels_pages_are_touched_by_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MADV_POPULATE_WRITE", 9999)
    monkeypatch.setattr(pages, "_MADV_COLLAPSE", 9999)
    assert touch(3 << 20) == (b"ss", 3 << 20)


def test_memory_in_pages_of_both_sizes_says_how_much_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "transparent", lambda: False)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    stand_in(tmp_path, monkeypatch, "os.write(1, b'hss')")
    arena, ended = NodeArena(0, 3, pages.PIECE_BYTES), threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    assert arena.pages == "4 MiB of it in small pages"
    arena.close()


def test_huge_pages_that_were_set_aside_are_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    create = os.memfd_create

    def small(name: str, wanted: int) -> int:
        flags.append(wanted & os.MFD_HUGETLB)
        return create(name, wanted & ~(os.MFD_HUGETLB | os.MFD_HUGE_2MB))

    monkeypatch.setattr(os, "memfd_create", small)  # this machine may have none
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 4 << 20)
    fits, does_not = NodeArena(0, 3, 1 << 20), NodeArena(0, 5, 1 << 20)
    assert flags == [os.MFD_HUGETLB, 0]
    assert fits.pages == "in huge pages that were set aside"
    assert fits.description.nbytes == 4 << 20
    assert "that were set aside" not in does_not.pages
    fits.close()
    does_not.close()


def test_huge_pages_that_were_taken_by_somebody_else_just_now_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Before()
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 1 << 60)
    arena = NodeArena(0, 1 << 30, 1 << 10)  # a terabyte: nobody has that many
    assert not arena.pages.startswith("in huge pages that were")
    arena.close()
    before.check()


# ---------------------------------------------------------------------- mapping what was received


def memory(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("description", "why"),
    [
        (ArenaDescription(0, 4, 1000, 8192), "an arena of 4096 bytes instead of 8192"),
        (ArenaDescription(0, 5, 1000, 4096), "an arena of 4096 bytes with 5000 bytes of slots"),
        (ArenaDescription(0, 0, 1000, 4096), "with 0 bytes of slots"),
        (ArenaDescription(0, 4, 1000, 4096, 2048), "an arena of 4096 bytes with 4000 bytes of slots"),
        (ArenaDescription(0, 4, 1000, 4096, 1 << 62), "an arena of 4096 bytes with 4000 bytes of slots"),
    ],
)
def test_memory_that_is_not_what_was_said_is_not_mapped(description: ArenaDescription, why: str) -> None:
    descriptor = memory(4096)
    with pytest.raises(BadFrame, match=why):
        MappedArena(descriptor, description)
    os.close(descriptor)


def test_memory_that_can_shrink_under_its_readers_is_not_mapped() -> None:
    descriptor = memory(4096, seals=fcntl.F_SEAL_GROW)
    with pytest.raises(BadFrame, match="an arena whose size can change"):
        MappedArena(descriptor, ArenaDescription(0, 4, 1000, 4096))
    os.close(descriptor)


def test_what_is_no_memory_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with (tmp_path / "file").open("r+b") as file, pytest.raises(BadFrame):
        MappedArena(file.fileno(), ArenaDescription(0, 4, 1000, 4096))
    reading, writing = os.pipe()
    with pytest.raises(BadFrame):
        MappedArena(reading, ArenaDescription(0, 4, 1000, 4096))
    os.close(reading)
    os.close(writing)


def test_the_memory_of_a_closed_arena_cannot_be_reached_but_a_view_of_it_stays() -> None:
    descriptor = memory(4096)
    arena = MappedArena(descriptor, ArenaDescription(0, 4, 1000, 4096))
    os.close(descriptor)
    view = arena.memory
    arena.close()
    with pytest.raises(CopyError, match="closed"):
        _ = arena.memory
    view[3, :] = 1
    assert view.sum() == 1000


@pytest.mark.parametrize("touches", [False, True])
def test_f28_a_gpu_pins_only_what_the_node_has_touched_so_that_nothing_counts_for_the_engine(touches: bool) -> None:
    gpu, slot_bytes = FakeGpu(), 1 << 20
    arena, ended = NodeArena(0, 9, slot_bytes), threading.Event()
    arena.mapped.memory[:5] = 1
    touched = resident_bytes(arena.descriptor)
    theirs = MappedArena(arena.descriptor, arena.description, follows=True)
    pinner = Pinner(gpu, theirs, piece_bytes=2 << 20)
    slots = touched // (2 << 20) * 2  # whole pieces
    wait_until(lambda: pinner.usable_slots >= slots)
    assert not pinner.wait(0.05)
    assert resident_bytes(arena.descriptor) == touched
    if touches:
        arena.touch(ended.set)
        assert pinner.wait(20)
    assert pinner.usable_slots == (9 if touches else slots)
    assert pinner.close(20)
    theirs.close()
    arena.close()


def test_f28_a_gpu_pins_rows_only_when_the_node_has_touched_them() -> None:
    arena = NodeArena(0, 300, 1552, row_bytes=4096)
    theirs = MappedArena(arena.descriptor, arena.description, follows=True)
    assert theirs.unpacked is not None
    rows = Pinner(FakeGpu(), theirs.unpacked.arena, piece_bytes=2 << 20, after=theirs)
    assert not rows.wait(0.05)
    assert (rows.pinned_bytes, resident_bytes(arena.descriptor)) == (0, 0)
    assert arena.mapped.unpacked is not None
    arena.mapped.unpacked.arena.memory[:] = 0
    assert theirs.pages_there() == 0
    assert not rows.wait(0.05)
    arena.mapped.memory[:5] = 0
    assert 5 * 1552 <= theirs.pages_there() < 300 * 1552
    assert rows.wait(20)
    assert rows.usable_slots == 3
    assert rows.close(20)
    theirs.close()
    arena.close()


def test_f28_reserved_huge_pages_have_no_holes_and_are_pinned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux answers so for files that cannot say where their holes are."""
    before, descriptor = Before(), memory(4096)
    monkeypatch.setattr(os, "lseek", lambda file, _at, _whence: os.fstat(file).st_size)
    arena = MappedArena(descriptor, ArenaDescription(0, 4, 1000, 4096), follows=True)
    os.close(descriptor)
    assert arena.pages_there() == arena.pages_there() == 4096
    assert before.new_descriptors
    arena.close()
    arena.close()
    before.check()


def test_memory_that_cannot_be_followed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    descriptor = memory(4096)
    monkeypatch.setattr(os, "dup", refuse)
    with pytest.raises(BadFrame, match=r"cannot be followed \(Too many open files\)"):
        MappedArena(descriptor, ArenaDescription(0, 4, 1000, 4096), follows=True)
    os.close(descriptor)


FORK = """
import os, resource
from kvtide.errors import CopyError
from kvtide.node.arenas import NodeArena
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
arena = NodeArena(0, 4, 4096)
view = arena.mapped.memory
view[:] = 1
child = os.fork()
if child == 0:
    try:
        arena.mapped.memory
    except CopyError:
        view[0, 0] = 2  # ends the child
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.WTERMSIG(status), view.sum())
"""


def test_a_child_has_no_memory_there() -> None:
    ran = python(FORK)
    out, _ = ran.communicate(timeout=60)
    assert out == f"11 {4 * 4096}\n"
