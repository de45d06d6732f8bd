"""Host memory: how much is left, how much of it may be pinned, and in which pages it comes."""

from __future__ import annotations

import re
import resource

from kvtide.copy.memory_left import memory_left, memory_limit
from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.doctor.machine import Machine
from kvtide.doctor.wanted import Wanted
from kvtide.units import size_text

_TRANSPARENT = "sys/kernel/mm/transparent_hugepage/enabled"
_RESERVED_SHARE_MAX = 0.1


def check_memory(machine: Machine, wanted: Wanted) -> Finding:
    """Compare what kvtide would take with what the machine and the control groups around this process have left."""
    if wanted.node is not None:
        return ok(f"kvtide takes none: it is that of the node at {wanted.node}")
    left, limit = memory_left(machine.root), memory_limit(machine.root)
    takes = f"kvtide takes {size_text(wanted.host_bytes)}" + (" for each rank" if wanted.per_rank else "")
    found = f"{takes} of {size_text(left.nbytes)} that {left.source} ({size_text(limit)} in all)"
    if wanted.host_bytes <= left.nbytes:
        return ok(found)
    advice = 'make "host" smaller, give the container or the machine more memory, or end what else takes it'
    return bad(found, advice) if wanted.given else warning(found, advice)


def check_pinning(machine: Machine, wanted: Wanted, limit_bytes: int | None = None) -> Finding:
    """Compare what RDMA would lock with what this user may. CUDA's driver pins memory without asking for that limit."""
    if "microsoft" in (machine.read("proc/version") or "").lower():
        return warning("Windows' subsystem for Linux, where GPUs can pin little memory", "use Linux itself for serving")
    if limit_bytes is None:
        limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return ok("no limit (ulimit -l)")
    found = f"at most {size_text(limit_bytes)} may be locked (ulimit -l)"
    if wanted.host_bytes <= limit_bytes:
        return ok(found)
    if not wanted.rdma:
        return ok(f"{found}; that is enough: GPUs pin through their driver, and nothing here uses RDMA")
    return bad(
        f"{found}, and RDMA has to lock {size_text(wanted.host_bytes)}",
        "raise the limit: ulimit -l unlimited, in systemd LimitMEMLOCK=infinity, in Docker --ulimit memlock=-1",
    )


def check_huge_pages(machine: Machine) -> Finding:
    """Say whether memory comes in huge pages: what reads or pins them is faster. Only a node uses reserved ones."""
    chosen = re.search(r"\[(\w+)\]", machine.read(_TRANSPARENT) or "")
    mode = chosen[1] if chosen else "unknown to this kernel"
    total, free, size = (machine.meminfo(name) or 0 for name in ("HugePages_Total", "HugePages_Free", "Hugepagesize"))
    found = f"transparent: {mode}; reserved: {size_text(total * size)}, {size_text(free * size)} of it unused"
    if mode not in ("always", "madvise"):
        return warning(found, f"let programs ask for them: echo madvise > /{_TRANSPARENT} (as root, on the host)")
    if free * size > _RESERVED_SHARE_MAX * (machine.meminfo("MemTotal") or float("inf")):
        return warning(
            found,
            "give back what nobody uses (sysctl vm.nr_hugepages=0), unless a kvtide node is to start here: only nodes "
            "use pages that are reserved",
        )
    return ok(found)
