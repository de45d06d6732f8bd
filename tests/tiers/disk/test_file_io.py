"""Whether direct I/O works is tried without leaving anything behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kvtide.tiers.disk.file_io import IoMode, probe


def test_nothing_is_left_where_direct_io_works_or_does_not(tmp_path: Path) -> None:
    probe(tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_the_file_is_made_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As file systems without direct I/O do: open(2) makes the file before it looks at O_DIRECT."""
    real = os.open

    def refuses(path: Path, flags: int, mode: int) -> int:
        os.close(real(path, flags & ~os.O_DIRECT, mode))
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refuses)
    assert probe(tmp_path) is IoMode.BUFFERED
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_writing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "pwritev", refuses)
    assert probe(tmp_path) is IoMode.BUFFERED
    assert not list(tmp_path.iterdir())
