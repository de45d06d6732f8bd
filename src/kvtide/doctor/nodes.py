"""NUMA: which node each GPU is next to, and whether memory may be asked for from there."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import numpy as np

from kvtide.copy import numa
from kvtide.doctor.base import Finding, ok, warning
from kvtide.doctor.gpus import GpuFound
from kvtide.doctor.machine import Machine


def may_prefer(node: int) -> None:
    """Try on one page whether memory may be asked for from a node. Raises OSError."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        address = int(np.frombuffer(page, np.uint8).ctypes.data)
        numa.prefer_node(address, mmap.PAGESIZE, node)


def check_numa(machine: Machine, gpus: Sequence[GpuFound], prefer: Callable[[int], None] = may_prefer) -> Finding:
    """Say where the GPUs are, and whether host memory will be next to them."""
    nodes = sorted(numa.nodes(machine.root))
    if len(nodes) <= 1:
        return ok("one node: all memory is equally near" if nodes else "this machine does not say, as with one node")
    found = f"{len(nodes)} nodes"
    if not gpus:
        return ok(f"{found}, no GPU")
    near = {gpu.slot: numa.node_of_device(gpu.slot, machine.root) for gpu in gpus}
    found += "; " + ", ".join(
        f"GPU at {slot} {'next to an unknown one' if node is None else f'next to node {node}'}"
        for slot, node in near.items()
    )
    if None in near.values():
        return warning(
            found,
            "start vLLM on the node of its GPU (numactl --cpunodebind=N --membind=N; nvidia-smi topo -m says which): "
            "the system does not say it, so kvtide cannot ask for memory from there",
        )
    try:
        for node in sorted({node for node in near.values() if node is not None}):
            prefer(node)
    except OSError as error:
        return warning(
            f"{found}; memory cannot be asked for from a node: {error.strerror}",
            "allow mbind in the container: CAP_SYS_NICE (docker run --cap-add SYS_NICE) or another seccomp profile",
        )
    return ok(found)
