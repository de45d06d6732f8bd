"""From which NUMA node memory comes, by the kernel's own calls: libnuma need not be installed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Collection
from pathlib import Path

from kvtide.copy import libc

_MBIND = {"x86_64": 237, "aarch64": 235}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_MPOL_PREFERRED, _MPOL_INTERLEAVE = 1, 3
_MPOL_F_NODE, _MPOL_F_ADDR = 1, 2
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def prefer_node(address: int, nbytes: int, node: int) -> None:
    """Let pages that are made from now on come from a node, whoever touches them, as long as it has any.

    Preferred, not bound in the kernel's sense: with MPOL_BIND the process is killed when the node is full, though
    others have memory, and an arena may well be larger than a node. Raises OSError, as where a container forbids it.
    """
    _bind(address, nbytes, _MPOL_PREFERRED, (node,))


def interleave_nodes(address: int, nbytes: int, nodes: Collection[int]) -> None:
    """Let pages that are made from now on come from several nodes in turn, and from others when these are full.

    For memory that GPUs of several nodes read: none of them waits for one node alone. Raises OSError.
    """
    _bind(address, nbytes, _MPOL_INTERLEAVE, nodes)


def _bind(address: int, nbytes: int, mode: int, nodes: Collection[int]) -> None:
    words = (ctypes.c_ulong * (max(nodes) // _WORD_BITS + 1))()
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    bits = len(words) * _WORD_BITS + 1  # the kernel takes one off
    _call(_MBIND, address, nbytes, mode, ctypes.addressof(words), bits, 0)


def node_of(address: int) -> int:
    """Return the node that a page came from. Raises OSError."""
    node = ctypes.c_int(-1)
    _call(_GET_MEMPOLICY, ctypes.addressof(node), 0, 0, address, _MPOL_F_NODE | _MPOL_F_ADDR)
    return node.value


def node_of_device(slot: str, root: Path = Path("/")) -> int | None:
    """Return the node next to the PCI device in a slot such as "0000:3b:00.0"; None if the system does not say."""
    try:
        node = int((root / "sys/bus/pci/devices" / slot / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cpus_of_device(slot: str, root: Path = Path("/")) -> frozenset[int]:
    """Return the CPUs next to a PCI device that this process may use; none if the system does not say."""
    try:
        cpus = parse_list((root / "sys/bus/pci/devices" / slot / "local_cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()
    return cpus & os.sched_getaffinity(0)


def nodes(root: Path = Path("/")) -> frozenset[int]:
    """Return the nodes of this machine; none if the system does not say."""
    try:
        return parse_list((root / "sys/devices/system/node/online").read_text())
    except (OSError, ValueError):
        return frozenset()


def parse_list(text: str) -> frozenset[int]:
    """Read numbers as the kernel writes them: "0-3,8"."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _call(numbers: dict[str, int], *arguments: int) -> None:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _syscall(number, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _syscall(number: int, *arguments: int) -> int:
    return int(libc.load().syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)))
