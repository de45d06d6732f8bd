"""Memory of the node: made here, handed out as a descriptor, gone when the last process that has it is gone."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable
from dataclasses import replace

from kvtide.copy import numa
from kvtide.copy.arena import HUGE_PAGE_BYTES
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription
from kvtide.node.huge_pages import how_to, reserved_bytes, transparent
from kvtide.node.mapped import SEALS, MappedArena
from kvtide.node.touching import Touching
from kvtide.units import how_many, size_text

_HUGE, _SMALL = "in huge pages", "in small pages"


class NodeArena:
    """The slots of one part: one memfd of a size that never changes, touched by the node in the background.

    Pages count for the container of who touches them first, and an engine that ends must not leave that behind. So
    only slots that are ready are handed out.
    """

    def __init__(
        self, part: int, slots: int, slot_bytes: int, *, row_bytes: int = 0, numa_node: int | None = None
    ) -> None:
        """`row_bytes`: of a block that does not pack; 0 where blocks are not packed.

        `numa_node`: next to which its first worker's GPU is, if that is known.
        """
        self.numa_node: int | None = None
        """Where its pages come from, as long as there are any."""
        self.numa_failure = ""
        """Why they come from anywhere, on a machine where that makes a difference."""
        self.descriptor, self.mapped, self._pages = _make(part, slots, slot_bytes, row_bytes)
        self._prefer(numa_node)
        self._touching = Touching(self.descriptor, self.description.nbytes, collapses=self._pages == _SMALL)

    def _prefer(self, node: int | None) -> None:
        if node is None:
            self.numa_failure = "its first worker does not say which" if _are_several() else ""
            return
        try:
            for address, nbytes in self.mapped.pieces:
                numa.prefer_node(address, nbytes, node)
            self.numa_node = node
        except OSError as error:
            self.numa_failure = f"{error.strerror}"

    @property
    def description(self) -> ArenaDescription:
        """What goes with its descriptor."""
        return self.mapped.description

    @property
    def ready_slots(self) -> int:
        """How many slots, from the first on, have all their pages."""
        touched = min(self._touching.touched_bytes, self.description.used_bytes) - self.description.front_bytes
        return max(0, touched) // self.description.slot_bytes

    @property
    def failure(self) -> str:
        """Why not all slots will be ready; empty if nothing went wrong."""
        return self._touching.failure

    @property
    def pages(self) -> str:
        """What pages it has, as far as they were touched."""
        huge_bytes = self._touching.huge_bytes
        small_bytes = self._touching.touched_bytes - huge_bytes
        if self._pages != _SMALL:
            return self._pages
        if huge_bytes and small_bytes < HUGE_PAGE_BYTES:
            return _HUGE
        if huge_bytes:
            return f"{size_text(small_bytes)} of it {_SMALL}"
        return f"{_SMALL} (for huge ones: {how_to()})" if small_bytes else "not touched yet"

    def touch(self, on_end: Callable[[], None]) -> None:
        """Begin to touch pages; `on_end` is called by another thread when all are touched, or no more can be.

        Raises OSError, and is closed then.
        """
        try:
            self._touching.start(on_end)
        except OSError:
            self.close()
            raise

    def described(self) -> str:
        """Return it for the log."""
        where = f" of {self.where}" if self.where else ""
        return f"{how_many(self.description.slots, 'slot')} of {size_text(self.description.slot_bytes)}{where}"

    @property
    def where(self) -> str:
        """Say where its pages come from; empty if nobody has asked, and it makes no difference."""
        if self.numa_failure:
            return f"any NUMA node ({self.numa_failure})"
        return "" if self.numa_node is None else f"NUMA node {self.numa_node}"

    def far_from(self, node: int | None) -> str:
        """Say that it is not on the NUMA node of somebody's GPU; empty if it is, or if that is not known."""
        if node in (None, self.numa_node) or not _are_several():
            return ""
        return f"memory of {self.where} and a GPU next to NUMA node {node}"

    def close(self) -> None:
        """Give it back. Others keep what they have mapped."""
        self._touching.stop()
        self.mapped.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _make(part: int, slots: int, slot_bytes: int, row_bytes: int) -> tuple[int, MappedArena, str]:
    """Return a descriptor, its mapping, and what pages it has: huge ones that were set aside, if they suffice."""
    description = ArenaDescription(part, slots, slot_bytes, 0, row_bytes)
    nbytes = _rounded(description.used_bytes, HUGE_PAGE_BYTES)
    if nbytes <= reserved_bytes():
        # They may be taken by somebody else just now, and other sizes may be all that this machine knows.
        with contextlib.suppress(OSError, BadFrame):
            huge = replace(description, nbytes=nbytes)
            return *_sealed(huge, os.MFD_HUGETLB | os.MFD_HUGE_2MB), "in huge pages that were set aside"
    is_transparent = transparent()
    pages = _HUGE if is_transparent else _SMALL
    page_bytes = HUGE_PAGE_BYTES if is_transparent else mmap.PAGESIZE
    return *_sealed(replace(description, nbytes=_rounded(description.used_bytes, page_bytes)), 0), pages


def _sealed(description: ArenaDescription, flags: int) -> tuple[int, MappedArena]:
    descriptor = os.memfd_create(f"kvtide-{description.part}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(descriptor, description.nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return descriptor, MappedArena(descriptor, description)
    except BaseException:
        os.close(descriptor)
        raise


def _are_several() -> bool:
    """Whether it makes a difference where memory is."""
    return len(numa.nodes()) > 1


def _rounded(nbytes: int, page_bytes: int) -> int:
    return -(-nbytes // page_bytes) * page_bytes
