"""The lock of a folder: one holder at a time, also when the file is removed by whoever holds it."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from kvtide.tiers.disk.lock import LOCK_NAME, FolderLock, Held, holder


def test_one_holder_at_a_time_who_is_named(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(Held, match=f"process {os.getpid()}"):
            FolderLock(tmp_path)
    assert holder(tmp_path) is None


def test_who_waits_for_a_file_that_is_removed_takes_the_new_one(tmp_path: Path) -> None:
    """Otherwise the next one would make a new file, and both would have a lock."""
    first = FolderLock(tmp_path)
    taken: list[FolderLock] = []
    waiting = threading.Thread(target=lambda: taken.append(FolderLock(tmp_path, timeout_s=20)))
    waiting.start()
    time.sleep(0.05)
    (tmp_path / LOCK_NAME).unlink()
    first.close()
    waiting.join(20)
    with pytest.raises(Held):
        FolderLock(tmp_path)
    taken[0].close()
    FolderLock(tmp_path).close()


def test_a_file_that_goes_between_opening_and_locking_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open
    removed: list[int] = []

    def open_(path: Path, *rest: int) -> int:
        file = opened(path, *rest)
        if len(removed) < 3:
            os.unlink(path)
            removed.append(file)
        return file

    monkeypatch.setattr(os, "open", open_)
    with FolderLock(tmp_path), pytest.raises(Held):
        FolderLock(tmp_path)
    assert len(removed) == 3


def test_a_lock_is_had_on_a_full_disk_too_and_names_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever empties the folder needs it."""
    (tmp_path / LOCK_NAME).write_text("123456789\n")

    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with FolderLock(tmp_path):
        assert holder(tmp_path) == 0
        with pytest.raises(Held, match="another process"):
            FolderLock(tmp_path)


def test_a_folder_that_is_not_there_is_an_error_and_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        FolderLock(tmp_path / "gone")
    for _ in range(3):
        with FolderLock(tmp_path), pytest.raises(Held):
            FolderLock(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
