"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.traces.writing import check_writable, write_whole


def fail(path: Path) -> None:
    path.write_text("half")
    raise OSError(28, "No space left on device")


def write_after(path: Path) -> None:
    path.write_text("after")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    target.write_text("before")
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(str(target), fail)
    assert raised.value.filename == str(target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    target.write_text("before")
    write_whole(str(target), write_after)
    assert target.read_text() == "after"
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_written_to_and_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable("OUTPUT", str(pipe))
    write_whole(str(pipe), write_after)
    assert os.read(reading, 100) == b"after"
    os.close(reading)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_keeps_pointing_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(str(tmp_path / "link"), write_after)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "after"


@pytest.mark.parametrize(
    ("name", "why"), [("none/p.png", "a folder that exists"), ("p.jpg", "ends in .png"), ("", "ends in")]
)
def test_a_path_that_cannot_be_written_is_refused_beforehand(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_writable("--plot", str(tmp_path / name), (".png",))


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.png").mkdir()
    with pytest.raises(ConfigError, match="not a directory"):
        check_writable("--plot", str(tmp_path / "p.png"), (".png",))
