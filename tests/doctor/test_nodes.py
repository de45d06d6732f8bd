"""NUMA: where the GPUs are, and whether memory can come from there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kvtide.doctor.gpus import GpuFound, Link
from kvtide.doctor.nodes import check_numa, may_prefer
from tests.doctor.support import is_ok, is_warning, machine

GPU = GpuFound("NVIDIA H200", "0000:3b:00.0", Link(5, 16), Link(5, 16), answers=True)
TWO_NODES = {"sys/devices/system/node/online": "0-1\n"}
NEXT_TO_1 = {**TWO_NODES, "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n"}


def test_one_node_is_well_with_or_without_a_kernel_that_says_so(tmp_path: Path) -> None:
    assert is_ok(check_numa(machine(tmp_path / "says", {"sys/devices/system/node/online": "0\n"}), [GPU]), "one node")
    assert is_ok(check_numa(machine(tmp_path / "silent"), [GPU]), "does not say")


def test_several_nodes_without_a_gpu_are_well(tmp_path: Path) -> None:
    assert is_ok(check_numa(machine(tmp_path, TWO_NODES), []), "2 nodes, no GPU")


def test_memory_is_asked_for_from_the_node_next_to_the_gpu(tmp_path: Path) -> None:
    asked: list[int] = []
    assert is_ok(check_numa(machine(tmp_path, NEXT_TO_1), [GPU], asked.append), "GPU at 0000:3b:00.0 next to node 1")
    assert asked == [1]


def test_a_gpu_of_which_nobody_says_where_it_is_is_a_warning(tmp_path: Path) -> None:
    finding = check_numa(machine(tmp_path, TWO_NODES), [GPU], lambda node: None)
    assert is_warning(finding, "next to an unknown one", "numactl")


def test_a_container_that_forbids_it_is_a_warning(tmp_path: Path) -> None:
    def forbidden(node: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    finding = check_numa(machine(tmp_path, NEXT_TO_1), [GPU], forbidden)
    assert is_warning(finding, "Operation not permitted", "CAP_SYS_NICE")


def test_the_trial_asks_the_kernel(tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - that there is no such node, or that nobody may ask
        may_prefer(1000)
