"""All processes that this one has started, directly or not, and the memory that they have: read from /proc."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.vllm.node_rig import children_of, is_alive

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies: none of them is out of sight from now on."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants, those that live."""
    return list(filter(is_alive, (pid, *children_of(pid))))


def descendants() -> list[int]:
    """Return the descendants of this process that live."""
    return family_of(os.getpid())[1:]


def memory_bytes(pid: int, kind: str) -> int:
    """Return the resident memory of a process: `RssAnon` is its own, `RssShmem` is shared."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:"))


def command_of(pid: int) -> str:
    """Return what a process runs, for people."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "ended"


def nodes_memory(pids: list[int]) -> set[int]:
    """Return the inodes of memory of nodes that processes have open or mapped. The system keeps it for nobody else."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # it has just ended
            found.update(_opened(pid), _mapped(pid))
    return found


def _opened(pid: int) -> Iterator[int]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "memfd:kvtide" in os.readlink(link):
                yield link.stat().st_ino


def _mapped(pid: int) -> Iterator[int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:kvtide" in line:
            yield int(line.split()[4])
