"""Host memory: what is left, what may be locked, and its pages."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from kvtide.doctor.asked import read_asked
from kvtide.doctor.machine import Machine
from kvtide.doctor.memory import check_huge_pages, check_memory, check_pinning
from kvtide.doctor.wanted import Wanted, read_wanted
from tests.doctor.support import is_bad, is_ok, is_warning, machine

GIB = 1 << 30
MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"
CONTAINER = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{5 * GIB}\n",
}
RDMA = '{"host": "1GiB", "tiers": [{"type": "mooncake", "master": "127.0.0.1:1", "protocol": "rdma"}]}'


def test_enough_memory_is_well_and_the_numbers_are_said(tmp_path: Path) -> None:
    finding = check_memory(machine(tmp_path, {"proc/meminfo": MEMINFO}), Wanted(given=True, host_bytes=16 * GIB))
    assert is_ok(finding, "16 GiB of 32 GiB that this machine has left")


def test_a_configuration_that_takes_more_than_is_left_is_bad(tmp_path: Path) -> None:
    here = machine(tmp_path, {"proc/meminfo": MEMINFO})
    assert is_bad(check_memory(here, Wanted(given=True, host_bytes=33 * GIB)), "33 GiB of 32 GiB", '"host" smaller')


def test_the_limit_of_a_container_counts_and_is_named(tmp_path: Path) -> None:
    finding = check_memory(machine(tmp_path, CONTAINER), Wanted(given=True, host_bytes=4 * GIB))
    assert is_bad(finding, "4 GiB of 3 GiB", "give the container")
    assert "sys/fs/cgroup/memory.max" in finding.found


def test_less_than_kvtide_takes_by_itself_is_a_warning_as_long_as_nobody_asked_for_it(tmp_path: Path) -> None:
    assert is_warning(check_memory(machine(tmp_path, CONTAINER), Wanted()), "8 GiB of 3 GiB", '"host" smaller')


def test_memory_of_each_rank_is_called_that(tmp_path: Path) -> None:
    here = machine(tmp_path, {"proc/meminfo": MEMINFO})
    assert is_ok(check_memory(here, read_wanted(read_asked('{"host_per_rank": "2GiB"}'))), "2 GiB for each rank")


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, GIB])
def test_a_limit_that_nothing_reaches_is_well(tmp_path: Path, limit: int) -> None:
    assert is_ok(check_pinning(machine(tmp_path), read_wanted(read_asked(RDMA)), limit))


def test_a_low_limit_is_bad_for_rdma_and_no_matter_for_gpus(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert is_bad(check_pinning(here, read_wanted(read_asked(RDMA)), 8 << 20), "at most 8 MiB", "memlock=-1")
    assert is_ok(check_pinning(here, Wanted(), 8 << 20), "at most 8 MiB", "driver")


def test_the_limit_of_this_process_is_the_one_that_is_shown(tmp_path: Path) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, most))
        assert is_ok(check_pinning(machine(tmp_path), Wanted()), "at most 64 KiB")
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, most))


def test_windows_under_linux_is_a_warning(tmp_path: Path) -> None:
    here = machine(tmp_path, {"proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2\n"})
    assert is_warning(check_pinning(here, Wanted()), "Windows", "Linux itself")


def huge_pages(tmp_path: Path, enabled: str, *, free: int = 0) -> Machine:
    pages = f"HugePages_Total: {free}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n"
    return machine(
        tmp_path,
        {"proc/meminfo": MEMINFO + pages, "sys/kernel/mm/transparent_hugepage/enabled": enabled},
    )


@pytest.mark.parametrize("enabled", ["always [madvise] never", "[always] madvise never"])
def test_huge_pages_that_programs_can_have_are_well(tmp_path: Path, enabled: str) -> None:
    assert is_ok(check_huge_pages(huge_pages(tmp_path, enabled)), enabled.partition("[")[2].partition("]")[0])


def test_huge_pages_that_are_off_or_unknown_are_a_warning(tmp_path: Path) -> None:
    here = huge_pages(tmp_path, "always madvise [never]")
    assert is_warning(check_huge_pages(here), "never", "echo madvise >")
    assert is_warning(check_huge_pages(machine(tmp_path / "old")), "unknown", "echo madvise >")


def test_huge_pages_that_are_reserved_and_used_by_nobody_are_a_warning_when_they_are_many(tmp_path: Path) -> None:
    some, many = (huge_pages(tmp_path / str(free), "[madvise]", free=free) for free in (512, 16384))
    assert is_ok(check_huge_pages(some), "1 GiB of it unused")
    assert is_warning(check_huge_pages(many), "32 GiB of it unused", "nr_hugepages=0")
    assert is_warning(check_huge_pages(many), "reserved: 32 GiB", "unless a kvtide node is to start here")


def test_memory_of_a_node_is_not_taken_by_the_server(tmp_path: Path) -> None:
    wanted = Wanted(given=True, host_bytes=0, node=Path("/run/kvtide/node.sock"))
    assert is_ok(check_memory(machine(tmp_path, CONTAINER), wanted), "takes none", "/run/kvtide/node.sock")
