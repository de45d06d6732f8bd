"""What a control group has left is its limit less its usage, whatever the version and wherever it is mounted (F22)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide.copy.memory_left import memory_left, memory_limit
from kvtide.units import size_text

V1 = "35 31 0:32 {top} {place} rw,relatime shared:9 - cgroup cgroup rw,memory"
V2 = "31 23 0:28 {top} {place} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
V1_UNLIMITED = 0x7FFFFFFFFFFFF000
PLACE = "/sys/fs/cgroup"


class Machine:
    """A made-up /proc and /sys with 1,000,000 KiB left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 1000000 kB\n")
        self.mounts = ["24 1 0:22 / /proc rw - proc proc rw", "25 1 8:1 / / rw - ext4 /dev/root rw"]

    def process(self, *groups: str) -> None:
        """Put the process into groups, as /proc/self/cgroup writes them."""
        (self.root / "proc/self/cgroup").write_text("".join(f"{group}\n" for group in groups))

    def mount(self, line: str, top: str = "/", place: str = PLACE) -> None:
        self.mounts.append(line.format(top=top, place=place))
        (self.root / "proc/self/mountinfo").write_text("".join(f"{mount}\n" for mount in self.mounts))

    def group(self, directory: str, **files: object) -> str:
        """Make a group; `memory_max=5` becomes a file `memory.max`. Returns its directory."""
        place = self.root / directory.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name.replace("memory_", "memory.", 1)).write_text(f"{content}\n")
        return str(place)

    def left(self) -> int:
        return memory_left(self.root).nbytes


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# ---------------------------------------------------------------------- one group


def test_without_groups_it_is_what_the_machine_has_left(machine: Machine) -> None:
    assert memory_left(machine.root).expected == "at most the 1024000000 bytes (976.6 MiB) that this machine has left"


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 9 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_machine_that_does_not_say_what_is_left_is_asked_what_it_has(machine: Machine, meminfo: str) -> None:
    (machine.root / "proc/meminfo").write_text(meminfo)
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_left(machine.root).expected == f"at most the {has} bytes ({size_text(has)}) that this machine has"


def test_f22_in_version_2_it_is_the_limit_less_the_usage(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    place = machine.group(f"{PLACE}/app", memory_max=5000, memory_current=2000)
    left = memory_left(machine.root)
    assert left.nbytes == 3000
    assert left.expected == f"at most the 3000 bytes (2.93 KiB) that are left of the 4.883 KiB in {place}/memory.max"
    assert memory_limit(machine.root) == 5000, "used or not"


def test_without_groups_there_is_what_the_machine_has(machine: Machine) -> None:
    assert memory_limit(machine.root) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_f22_in_version_1_it_is_the_limit_less_the_usage(machine: Machine) -> None:
    machine.process("9:name=systemd:/app", "4:cpu,memory:/app")
    machine.mount(V1, place=f"{PLACE}/memory")
    place = machine.group(f"{PLACE}/memory/app", memory_limit_in_bytes=5000, memory_usage_in_bytes=2000)
    assert memory_left(machine.root).expected.endswith(f"are left of the 4.883 KiB in {place}/memory.limit_in_bytes")
    assert machine.left() == 3000


def test_a_group_of_another_controller_does_not_count(machine: Machine) -> None:
    machine.process("4:pids:/app")
    machine.mount(V1.replace("rw,memory", "rw,pids"))
    machine.group(f"{PLACE}/app", memory_limit_in_bytes=5, memory_usage_in_bytes=2)
    assert machine.left() == 1024000000


def test_in_a_hybrid_tree_the_version_that_has_the_memory_counts(machine: Machine) -> None:
    machine.process("4:memory:/app", "0::/app")
    machine.mount(V1, place=f"{PLACE}/memory")
    machine.mount(V2, place=f"{PLACE}/unified")
    machine.group(f"{PLACE}/memory/app", memory_limit_in_bytes=5000, memory_usage_in_bytes=2000)
    machine.group(f"{PLACE}/unified/app", cgroup_procs=1)
    assert machine.left() == 3000


@pytest.mark.parametrize("limit", ["max", "", "-1", "12x"])
def test_no_limit_in_version_2_leaves_what_the_machine_has(machine: Machine, limit: str) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=limit, memory_current=2000)
    assert machine.left() == 1024000000


def test_no_limit_in_version_1_leaves_what_the_machine_has(machine: Machine) -> None:
    machine.process("4:memory:/app")
    machine.mount(V1)
    machine.group(f"{PLACE}/app", memory_limit_in_bytes=V1_UNLIMITED, memory_usage_in_bytes=2000)
    assert machine.left() == 1024000000


def test_a_limit_above_what_the_machine_has_does_not_count(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=1 << 40, memory_current=2000)
    assert memory_left(machine.root).source == "this machine has left"


def test_what_slows_a_group_down_counts_as_a_limit(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=5000, memory_high=4000, memory_current=2000)
    assert machine.left() == 2000


@pytest.mark.parametrize(("current", "left"), [(5000, 0), (7000, 0)])
def test_a_full_group_has_nothing_left(machine: Machine, current: int, left: int) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=5000, memory_current=current)
    assert machine.left() == left


# ---------------------------------------------------------------------- page cache


def test_files_that_the_kernel_can_drop_are_not_usage(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    stat = "anon 1100\nfile 900\ninactive_anon 1100\nactive_file 400\ninactive_file 500"
    machine.group(f"{PLACE}/app", memory_max=5000, memory_current=2000, memory_stat=stat)
    assert machine.left() == 3900


def test_in_version_1_files_of_groups_below_are_counted_as_their_usage_is(machine: Machine) -> None:
    machine.process("4:memory:/app")
    machine.mount(V1)
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 500\ntotal_active_file 400"
    machine.group(f"{PLACE}/app", memory_limit_in_bytes=5000, memory_usage_in_bytes=2000, memory_stat=stat)
    assert machine.left() == 3900


def test_more_cache_than_usage_never_makes_more_than_the_limit(machine: Machine) -> None:
    machine.process("0::/app")  # the files are read one after the other, so they may disagree
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=5000, memory_current=100, memory_stat="inactive_file 300")
    assert machine.left() == 5000


# ---------------------------------------------------------------------- nested groups


@pytest.mark.parametrize("full", ["pod", "slice", "slice/pod/app"])
def test_f22_every_group_above_counts_with_its_own_usage(machine: Machine, full: str) -> None:
    machine.process("0::/slice/pod/app")
    machine.mount(V2)
    for name in ("slice", "slice/pod", "slice/pod/app"):
        machine.group(f"{PLACE}/{name}", memory_max=9000, memory_current=8500 if name.endswith(full) else 2000)
    assert machine.left() == 500


def test_f22_a_group_without_a_limit_is_held_by_the_one_above(machine: Machine) -> None:
    machine.process("4:memory:/pod/app")
    machine.mount(V1)
    machine.group(f"{PLACE}/pod/app", memory_limit_in_bytes=V1_UNLIMITED, memory_usage_in_bytes=100)
    place = machine.group(f"{PLACE}/pod", memory_limit_in_bytes=5000, memory_usage_in_bytes=4000)
    assert memory_left(machine.root).source == f"are left of the 4.883 KiB in {place}/memory.limit_in_bytes"


def test_a_group_without_the_controller_is_held_by_the_one_above(machine: Machine) -> None:
    machine.process("0::/pod/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/pod/app", cgroup_procs=1)
    machine.group(f"{PLACE}/pod", memory_max=5000, memory_current=4000)
    assert machine.left() == 1000


def test_a_group_beside_does_not_count(machine: Machine) -> None:
    machine.process("0::/pod/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/pod/app", memory_max=5000, memory_current=1000)
    machine.group(f"{PLACE}/pod/other", memory_max=5, memory_current=5)
    assert machine.left() == 4000


# ---------------------------------------------------------------------- what a container sees


def test_in_a_namespace_the_own_group_is_the_root(machine: Machine) -> None:
    machine.process("0::/")
    machine.mount(V2)
    machine.group(PLACE, memory_max=5000, memory_current=1000)
    assert machine.left() == 4000


def test_a_mount_of_the_own_group_is_found_by_its_name_outside(machine: Machine) -> None:
    machine.process("4:memory:/docker/abc/inner")
    machine.mount(V1, top="/docker/abc")
    machine.group(PLACE, memory_limit_in_bytes=5000, memory_usage_in_bytes=1000)
    machine.group(f"{PLACE}/inner", memory_limit_in_bytes=3000, memory_usage_in_bytes=500)
    assert machine.left() == 2500


def test_in_version_1_groups_out_of_sight_count_too(machine: Machine) -> None:
    machine.process("4:memory:/pod/abc")
    machine.mount(V1, top="/pod/abc")
    stat = "hierarchical_memory_limit 5000"
    limits = {"memory_limit_in_bytes": V1_UNLIMITED, "memory_usage_in_bytes": 1000, "memory_stat": stat}
    place = machine.group(PLACE, **limits)
    assert (
        memory_left(machine.root).expected
        == f"at most the 4000 bytes (3.906 KiB) that are left of the 4.883 KiB in {place}/memory.stat"
    )


@pytest.mark.parametrize(
    ("path", "top"), [("/", "/../.."), ("/inner", "/../.."), ("/../..", "/"), ("/../other", "/"), ("/../..", "/../..")]
)
def test_where_names_are_hidden_what_is_mounted_counts(machine: Machine, path: str, top: str) -> None:
    machine.process(f"0::{path}")
    machine.mount(V2, top=top)
    machine.group(PLACE, memory_max=5000, memory_current=1000)
    machine.group("/sys/fs/other", memory_max=5, memory_current=1)  # what "/../other" would be, as a directory
    assert machine.left() == 4000


@pytest.mark.parametrize("top", ["/../other", "/app/below", "/docker/other"])
def test_a_mount_of_somebody_elses_group_does_not_count(machine: Machine, top: str) -> None:
    machine.process("0::/app")
    machine.mount(V2, top=top)
    machine.group(PLACE, memory_max=5000, memory_current=1000)
    assert machine.left() == 1024000000


def test_of_several_mounts_the_least_counts(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2, top="/app", place="/own")
    machine.mount(V2, place="/host/cgroup")
    machine.group("/own", memory_max=5000, memory_current=1000)
    machine.group("/host/cgroup/app", memory_max=5000, memory_current=1000)
    machine.group("/host/cgroup", memory_max=3000, memory_current=2500)
    assert machine.left() == 500


def test_a_mount_point_with_a_space_is_found(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2, place="/sys/my\\040groups")
    machine.group("/sys/my groups/app", memory_max=5000, memory_current=1000)
    assert machine.left() == 4000


# ---------------------------------------------------------------------- what is missing


def test_a_usage_that_is_missing_leaves_the_limit(machine: Machine) -> None:
    machine.process("0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=5000)
    assert machine.left() == 5000


def test_a_directory_that_is_missing_leaves_the_groups_above(machine: Machine) -> None:
    machine.process("4:memory:/docker/abc", "0::/")
    machine.mount(V1)
    machine.group(PLACE, memory_limit_in_bytes=5000, memory_usage_in_bytes=1000)
    assert machine.left() == 4000


@pytest.mark.parametrize("line", ["", "::", "0", "nonsense", "4:memory"])
def test_lines_that_make_no_sense_are_ignored(machine: Machine, line: str) -> None:
    machine.mounts += ["", "nonsense", "1 2 3 - cgroup2", "1 2 3 / /x rw - cgroup"]
    machine.process(line, "0::/app")
    machine.mount(V2)
    machine.group(f"{PLACE}/app", memory_max=5000, memory_current=1000)
    assert machine.left() == 4000


def test_on_this_machine_something_is_left() -> None:
    assert memory_left().nbytes > 0
