"""Memory of the node: of a size that never changes, touched by the node, shared by whoever maps it."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from pathlib import Path

import pytest

from kvtide.copy.numa import node_of
from kvtide.errors import CopyError
from kvtide.node import arenas, huge_pages, touching
from kvtide.node.arenas import NodeArena
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription
from kvtide.node.mapped import MappedArena
from tests.left_behind import Before
from tests.node.support import python, wait_until


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


def test_it_is_touched_in_the_background_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "PIECE_BYTES", 4 * mmap.PAGESIZE)
    goes_on, pieces = threading.Semaphore(0), []
    populate = touching._populate

    def one_by_one(address: int, nbytes: int) -> None:
        goes_on.acquire()
        populate(address, nbytes)
        pieces.append(nbytes)

    monkeypatch.setattr(touching, "_populate", one_by_one)
    arena, ended = NodeArena(0, 10, 5000), threading.Event()
    arena.mapped.memory[0, :] = 7
    assert arena.ready_slots == 0
    arena.touch(ended.set)
    goes_on.release()
    wait_until(lambda: arena.ready_slots == 3)
    goes_on.release(3)
    assert ended.wait(20)
    assert arena.ready_slots == 10
    assert sum(pieces) == arena.description.nbytes == resident_bytes(arena.descriptor)
    assert arena.mapped.memory[0].sum() == 35_000, "touching changes nothing"
    assert arena.failure == ""
    arena.close()


def test_on_older_kernels_it_is_touched_by_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "_MADV_POPULATE_WRITE", 9999)
    arena, ended = NodeArena(0, 10, 5000), threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    assert resident_bytes(arena.descriptor) == arena.description.nbytes
    arena.close()


def test_memory_that_cannot_be_had_leaves_the_slots_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "PIECE_BYTES", mmap.PAGESIZE)
    populate = touching._populate

    def fail(address: int, nbytes: int) -> None:
        if address >= arena.mapped.address + 3 * mmap.PAGESIZE:
            raise OSError(12, "Cannot allocate memory")
        populate(address, nbytes)

    monkeypatch.setattr(touching, "_populate", fail)
    arena, ended = NodeArena(0, 10, mmap.PAGESIZE), threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    assert arena.ready_slots == 3
    assert "Cannot allocate memory" in arena.failure
    arena.close()


def test_closing_stops_touching_and_leaves_nothing() -> None:
    before = Before()
    arena = NodeArena(0, 64, 1 << 20)
    arena.touch(lambda: None)
    arena.close()
    arena.close()
    before.check()


def test_its_pages_come_from_the_node_that_was_asked_for() -> None:
    arena, ended = NodeArena(0, 4, mmap.PAGESIZE, numa_node=0), threading.Event()
    arena.touch(ended.set)
    assert ended.wait(20)
    if arena.numa_failure:  # a container may forbid it, and then it is said
        assert "of any NUMA node" in arena.described()
    else:
        assert node_of(arena.mapped.address) == 0
        assert "of NUMA node 0" in arena.described()
    arena.close()


def test_a_node_that_is_not_there_is_said_and_costs_nothing_else() -> None:
    arena = NodeArena(0, 4, 1000, numa_node=900)
    assert arena.numa_failure
    assert "of any NUMA node (" in arena.described()
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
    assert "in small pages (for huge ones: `echo advise > /sys/kernel/mm/transparent_huge" in arena.described()
    arena.close()


def test_with_huge_pages_its_size_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "transparent", lambda: True)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    arena = NodeArena(0, 4, 1000)
    assert arena.description.nbytes == 2 << 20
    assert "in huge pages" in arena.described()
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
    assert (arena.pages == "in huge pages") == (pmd_mapped_kib(arena.mapped.address) == 4096)
    assert not arena.mapped.memory.any()
    arena.close()


def test_the_kernel_is_asked_for_each_huge_page_and_what_is_left_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def agree(address: int) -> bool:
        asked.append(address)
        touching._populate(address, touching.PIECE_BYTES)
        return True

    monkeypatch.setattr(arenas, "transparent", lambda: False)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    monkeypatch.setattr(arenas, "collapse", agree)
    monkeypatch.setattr(touching, "collapse", agree)
    arena = touched(NodeArena(0, 5, 1 << 20))
    first = arena.mapped.address
    assert arena.pages == "in huge pages"
    assert asked == [first, first, first + touching.PIECE_BYTES], "the first one tells whether it can be had"
    arena.close()


def test_a_kernel_that_has_no_huge_pages_left_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def refuse(address: int) -> bool:
        refused.append(address)
        return False

    monkeypatch.setattr(arenas, "transparent", lambda: False)
    monkeypatch.setattr(arenas, "reserved_bytes", lambda: 0)
    monkeypatch.setattr(arenas, "collapse", lambda _: True)
    monkeypatch.setattr(touching, "collapse", refuse)
    touched(NodeArena(0, 10, touching.PIECE_BYTES)).close()
    assert len(refused) == 8


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
    assert "in huge pages that were set aside" in fits.described()
    assert fits.description.nbytes == 4 << 20
    assert "that were set aside" not in does_not.described()
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
