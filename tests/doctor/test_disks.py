"""Disks: room, direct I/O and speed. Nothing is left behind."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvtide.doctor import disks
from kvtide.doctor.base import Finding
from kvtide.doctor.disks import Place, check_direct_io, check_space, check_speed, judge_direct_io, judge_speed, scratch
from kvtide.tiers.disk.file_io import IoMode, write_all
from tests.doctor.support import is_bad, is_ok, is_warning
from tests.tiers.disk.test_backend import fill

MISSING = Path("/nowhere/at/all")
CHECKS = [check_space, check_direct_io, check_speed]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the system refuse larger files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_is_told_and_what_the_tier_takes_and_holds_of_it(tmp_path: Path) -> None:
    assert is_ok(check_space(Place(tmp_path)), "free at", str(tmp_path))
    fill(tmp_path)
    finding = check_space(Place(tmp_path, 4 << 20))
    assert is_ok(finding, "takes 4 MiB at most")
    assert "holds 0 bytes" not in finding.found


def test_a_tier_that_would_leave_the_disk_nearly_full_is_a_warning(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    assert is_warning(check_space(Place(tmp_path, free)), "at most", "make room")


@pytest.mark.parametrize("check", CHECKS)
def test_a_folder_that_cannot_be_used_is_bad_for_a_tier_and_no_matter_otherwise(
    check: Callable[[Place], Finding],
) -> None:
    assert is_bad(check(Place(MISSING, 1 << 30)), "No such file or directory", "choose a folder")
    assert is_ok(check(Place(MISSING)), "not tried")


def test_direct_io_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "probe.tmp").write_text("somebody's own")
    assert "at " + str(tmp_path) in check_direct_io(Place(tmp_path)).found
    assert (tmp_path / "probe.tmp").read_text() == "somebody's own"
    assert left(tmp_path) == ["probe.tmp"]


def test_no_direct_io_is_a_warning_and_bad_where_it_is_asked_for(tmp_path: Path) -> None:
    assert is_ok(judge_direct_io(Place(tmp_path, 1), True), "works")
    assert is_warning(judge_direct_io(Place(tmp_path, 1), False), "does not work", "ext4 or XFS")
    assert is_bad(judge_direct_io(Place(tmp_path, 1, "direct"), False), "does not work", 'leave out "io": "direct"')
    assert is_ok(judge_direct_io(Place(tmp_path), False), "does not work")


def direct_io_works(folder: Path) -> bool:
    return "works" in check_direct_io(Place(folder)).found


@pytest.mark.parametrize("io", ["auto", "direct", "buffered", "cached"])
def test_speed_is_measured_both_ways_within_bounds_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: str
) -> None:
    written: list[int] = []

    def counted(file: int, buffers: list[memoryview], offset: int) -> None:
        written.append(sum(buffer.nbytes for buffer in buffers))
        write_all(file, buffers, offset)

    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(disks, "write_all", counted)
    monkeypatch.setattr(disks, "MEASURED_BYTES_MAX", 8 << 20)
    speeds = disks.measure(Place(tmp_path, 1 << 30, io))
    assert speeds is not None
    assert min(speeds) > 0
    assert 0 < sum(written) <= 8 << 20
    assert len(synced) == (0 if io in ("auto", "direct") and direct_io_works(tmp_path) else len(written))
    assert left(tmp_path) == []


def test_where_a_tier_has_filled_the_disk_the_speed_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "PIECE_BYTES", 1 << 60)
    assert is_ok(check_speed(Place(tmp_path, 1 << 30)), "not measured")


def test_a_slow_disk_is_a_warning_for_a_tier_and_no_matter_otherwise(tmp_path: Path) -> None:
    assert is_ok(judge_speed(Place(tmp_path, 1), 2e9, 3e9), "writes 2 GB/s, reads 3 GB/s")
    assert is_warning(judge_speed(Place(tmp_path, 1), 2e9, 90e6), "reads 90 MB/s", "NVMe")
    assert is_warning(judge_speed(Place(tmp_path, 1), 90e6, 2e9), "writes 90 MB/s", "NVMe")
    assert is_ok(judge_speed(Place(tmp_path), 90e6, 90e6))


def test_a_disk_that_refuses_what_is_written_is_bad_and_nothing_is_left(tmp_path: Path) -> None:
    with files_of_at_most(1 << 20):
        finding = check_speed(Place(tmp_path, 1 << 30))
    assert is_bad(finding, "File too large", "choose a folder")
    assert left(tmp_path) == []


def test_what_is_written_has_no_name_so_that_nothing_is_left_when_the_doctor_is_killed(tmp_path: Path) -> None:
    with scratch(tmp_path, IoMode.BUFFERED) as file:
        assert left(tmp_path) == []
        write_all(file, [memoryview(b"x")], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
