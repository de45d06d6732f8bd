"""What disks do: change bits, lose ends of files, fail, fill up. It costs hits, and nothing else (F8)."""

from __future__ import annotations

import errno
import io as builtin_io
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers import HIT, Item, Verdict
from kvtide.tiers.disk.aligned import PAGE
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.record import HEADER_BYTES
from tests.contracts.tier_contract import block, key, room
from tests.not_tested import lacks
from tests.tiers.disk.test_backend import items, served
from tests.tiers.support import disk_store

HERE = Path(__file__).parent
BLOCKS = 40


@pytest.fixture(params=["auto", "buffered"])
def io(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled(tmp_path: Path, io: str) -> Path:
    """Return a folder with a store of forty blocks."""
    store = disk_store(tmp_path, io=io)
    assert store.put(items(range(BLOCKS))) == [HIT] * BLOCKS
    store.close()
    return tmp_path


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("segment-*"))


def flip(path: Path, position: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path, number: int = errno.EACCES) -> None:
    """Let the system refuse one file or folder, also to root."""

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(name: object, *arguments: object, **named: object) -> object:
            if str(name) == str(path):
                raise OSError(number, os.strerror(number), str(name))
            return original(name, *arguments, **named)

        return call

    for module, name in ((os, "open"), (os, "scandir"), (builtin_io, "open")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))


def places(path: Path) -> list[int]:
    """Return where the bodies of a segment begin."""
    raw = path.read_bytes()
    headers = [raw[start : start + HEADER_BYTES] for start in range(PAGE, len(raw), HEADER_BYTES)]
    found = [int.from_bytes(header[88:92], "little") for header in headers if header[:4] == b"KVtd"]
    return [place * PAGE for place in found]


@pytest.mark.parametrize("seed", range(6))
def test_f8_a_flipped_bit_in_a_body_costs_that_block_and_is_counted(filled: Path, io: str, seed: int) -> None:
    rng = random.Random(seed)
    path = rng.choice(segments(filled))
    flip(path, rng.choice(places(path)) + rng.randrange(8192), rng.randrange(8))
    store = disk_store(filled, io=io)
    found = served(store, range(BLOCKS))
    assert len(found) == BLOCKS - 1
    assert store.corrupt_records() == 1
    (lost,) = set(range(BLOCKS)) - set(found)
    assert store.lookup([key(lost)])[0].verdict is Verdict.MISS
    assert store.put(items(range(lost, lost + 1))) == [HIT]
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    store.close()
    store = disk_store(filled, io=io)
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    store.close()


@pytest.mark.parametrize("seed", range(20))
def test_f8_a_flipped_bit_in_a_header_costs_that_block_at_most(filled: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = rng.choice(segments(filled))
    entry = rng.randrange(len(places(path)))
    flip(path, PAGE + entry * HEADER_BYTES + rng.randrange(HEADER_BYTES), rng.randrange(8))
    store = disk_store(filled)
    assert len(served(store, range(BLOCKS))) == BLOCKS - 1
    assert store.put(items(range(BLOCKS))) == [HIT] * BLOCKS
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    store.close()


@pytest.mark.parametrize("position", range(0, 48, 3))
def test_a_segment_whose_first_page_is_damaged_is_not_read_and_its_room_is_used_again(
    filled: Path, position: int
) -> None:
    path = segments(filled)[0]
    lost = len(places(path))
    flip(path, position)
    store = disk_store(filled)
    assert len(served(store, range(BLOCKS))) == BLOCKS - lost
    store.put(items(range(100, 1000)))
    assert (store.bytes_used() or 0) <= store.bytes_budget()
    store.close()


@pytest.mark.parametrize("keep", [0, 1, 100, PAGE, PAGE + 64, 2 * PAGE, 5 * PAGE + 1])
def test_a_truncated_file_costs_blocks_and_nothing_else(filled: Path, keep: int) -> None:
    for path in segments(filled)[:2]:
        os.truncate(path, keep)
    store = disk_store(filled)
    served(store, range(BLOCKS))
    store.put(items(range(BLOCKS)))
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    store.close()


def test_a_file_truncated_under_a_running_store_costs_blocks_and_nothing_else(filled: Path, io: str) -> None:
    store = disk_store(filled, io=io)
    path = segments(filled)[0]
    lost = len(places(path))
    os.truncate(path, 3 * PAGE)
    found = served(store, range(BLOCKS))
    assert BLOCKS - lost <= len(found) < BLOCKS
    assert store.corrupt_records() == BLOCKS - len(found)
    store.close()


def test_files_that_are_not_ours_or_nonsense_are_survived(filled: Path) -> None:
    rank = filled / "rank-0-of-1"
    (rank / "segment-00000077").write_bytes(b"nonsense")
    (rank / "segment-1").write_bytes(b"nonsense")
    (rank / f"namespace-{'0' * 32}.json").write_bytes(b"nonsense")
    (rank / "left-over.tmp").write_bytes(b"nonsense")
    (filled / "rank-x-of-y").mkdir()
    store = disk_store(filled)
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    assert not (rank / "left-over.tmp").exists()
    store.close()


def test_a_segment_that_the_system_does_not_let_read_is_skipped_with_one_line(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rank = filled / "rank-0-of-1"
    next_number = len(segments(filled))
    target = filled / "nothing"
    (rank / f"segment-{next_number:08d}").symlink_to(target)
    (rank / f"segment-{next_number + 1:08d}").mkdir()
    with caplog.at_level(logging.WARNING):
        store = disk_store(filled)
    assert [record.message.count("segment-0000000") for record in caplog.records] == [1]
    assert "and 1 more" in caplog.text
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    # The name is taken: a new segment does not follow the link.
    assert {result.verdict for result in store.put(items(range(100, 300)))} == {Verdict.HIT}
    assert not target.exists()
    store.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_segment_that_cannot_be_opened_costs_its_blocks_and_nothing_else(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    path = segments(filled)[0]
    lost = len(places(path))
    forbid(monkeypatch, path, number)
    with caplog.at_level(logging.WARNING):
        store = disk_store(filled)
    assert served(store, range(BLOCKS)) == list(range(lost, BLOCKS))
    assert caplog.text.count(path.name) == 1
    store.close()


def test_a_segment_that_cannot_be_deleted_does_not_keep_the_store_from_getting_smaller(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (filled / "rank-0-of-1" / "segment-00000077").mkdir()
    with caplog.at_level(logging.WARNING):
        store = disk_store(filled, 200_000)
    assert "cannot be deleted" in caplog.text
    # Nor does it keep new blocks out, when its room is wanted.
    assert [store.put(items(range(number, number + 1))) for number in range(100, 140)] == [[HIT]] * 40
    assert served(store, range(139, 140)) == [139]
    assert store.bytes_used() <= 200_000
    store.close()


def test_f21_a_store_that_cannot_be_made_smaller_is_refused(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", _refuse)
    with pytest.raises(ConfigError, match=r"tiers\[0\].path=.*: expected a folder that"):
        disk_store(filled, 200_000)


def test_f8_bytes_of_another_block_in_the_right_place_are_a_miss(filled: Path) -> None:
    path = segments(filled)[0]
    first, second = places(path)[:2]
    raw = bytearray(path.read_bytes())
    raw[first : first + 8192], raw[second : second + 8192] = raw[second : second + 8192], raw[first : first + 8192]
    path.write_bytes(raw)
    store = disk_store(filled)
    assert len(served(store, range(BLOCKS))) == BLOCKS - 2
    assert store.corrupt_records() == 2
    store.close()


# ---------------------------------------------------------------------- errors of the system


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what lets calls of the system fail, some of them or all."""

    def break_(name: str, number: int, share: float = 1.0) -> None:
        rng, original = random.Random(name), getattr(os, name)

        def call(*arguments: object) -> object:
            if rng.random() < share:
                raise OSError(number, os.strerror(number))
            return original(*arguments)

        monkeypatch.setattr(os, name, call)

    yield break_
    monkeypatch.undo()


def verdicts(store: DiskBackend, numbers: range) -> set[Verdict]:
    return {result.verdict for result in store.put(items(numbers))}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_write_that_fails_is_a_result_and_what_was_there_is_still_read(
    filled: Path, io: str, number: int, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk_store(filled, io=io)
    broken("pwritev", number)
    (result,) = store.put(items(range(100, 101)))
    assert result.verdict is Verdict.FAILED
    assert os.strerror(number) in result.why
    assert verdicts(store, range(100, 300)) == {Verdict.FAILED}
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    assert served(store, range(100, 300)) == []
    monkeypatch.undo()
    assert verdicts(store, range(100, 110)) == {Verdict.HIT}
    assert served(store, range(100, 110)) == list(range(100, 110))
    store.close()


def test_a_read_that_fails_is_a_result_and_the_next_one_works(
    filled: Path, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk_store(filled)
    broken("preadv", errno.EIO)
    results = store.get([Item(key(number), room()) for number in range(BLOCKS)])
    assert {result.verdict for result in results} == {Verdict.FAILED}
    assert "Input/output error" in results[0].why
    monkeypatch.undo()
    assert served(store, range(BLOCKS)) == list(range(BLOCKS))
    store.close()


def test_the_log_says_once_why_blocks_are_not_kept_or_read_and_when_they_are_again(
    filled: Path, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = disk_store(filled)
    wanted = [Item(key(number), room()) for number in range(BLOCKS)]
    broken("pwritev", errno.EIO)
    store.put(items(range(100, 110)))
    store.put(items(range(100, 110)))
    monkeypatch.undo()
    store.put(items(range(5)))  # they are known, so this shows nothing
    assert len(caplog.records) == 1
    store.put(items(range(100, 110)))
    broken("preadv", errno.EIO)
    store.get(wanted)
    store.get(wanted)
    monkeypatch.undo()
    store.get(wanted)
    why = "OSError: [Errno 5] Input/output error"
    assert [record.getMessage().replace(f" {filled}/rank-0-of-1", "") for record in caplog.records] == [
        f"kvtide: writing to: {why}; blocks are not kept there",
        "kvtide: writing to: works again",
        f"kvtide: reading: {why}; what cannot be read is computed instead",
        "kvtide: reading: works again",
    ]
    store.close()


def test_a_disk_that_is_full_is_named_once_in_the_log(
    tmp_path: Path, broken: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    store = disk_store(tmp_path, 3 << 20)
    store.put(items(range(10)))
    broken("posix_fallocate", errno.ENOSPC)
    for first in range(100, 400, 10):
        store.put(items(range(first, first + 10)))
    said = f"kvtide: the disk of {tmp_path}/rank-0-of-1 has less room than the tier's size: the tier goes on with what"
    assert [said in record.getMessage() for record in caplog.records] == [True]
    store.close()


@pytest.mark.parametrize("seed", range(5))
def test_errors_now_and_then_never_bring_wrong_bytes_or_more_than_the_budget(
    tmp_path: Path, seed: int, broken: Callable[..., None]
) -> None:
    rng = random.Random(seed)
    store = disk_store(tmp_path, 1 << 20)
    for name, number in (("pwritev", errno.EIO), ("preadv", errno.EIO), ("posix_fallocate", errno.ENOSPC)):
        broken(name, number, 0.2)
    for _ in range(150):
        first = rng.randrange(150)
        numbers = range(first, first + rng.randrange(1, 6))
        if rng.random() < 0.6:
            store.put(items(numbers))
        else:
            wanted = [Item(key(number), room()) for number in numbers]
            for number, item, result in zip(numbers, wanted, store.get(wanted), strict=True):
                assert result.verdict is not Verdict.HIT or item.buffer == block(number)
        if rng.random() < 0.02:
            store.clear()
        assert (store.bytes_used() or 0) <= 1 << 20
    assert not store.corrupt_records(), "what failed was not made known"
    store.close()


def test_a_clear_that_cannot_delete_says_so_and_nothing_is_found(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store(filled)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _refuse)
        assert store.clear().verdict is Verdict.FAILED
        assert served(store, range(BLOCKS)) == []
    assert store.clear() == HIT
    store.close()
    store = disk_store(filled)
    assert store.records == 0
    store.close()


def _refuse(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "no")


# ---------------------------------------------------------------------- real ones


def test_a_disk_that_fills_up_costs_puts_and_nothing_else(tmp_path: Path) -> None:
    """On a small file system of its own, in a namespace of mounts: no rights are needed."""
    fill = f'exec "{sys.executable}" -m tests.tiers.disk.full "{tmp_path}"'
    script = f'mount -t tmpfs -o size=4m kvtide "{tmp_path}" && {fill}'
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], check=False).returncode:  # noqa: S603 (our own)
        lacks("a full disk", "It needs a file system of its own, which this system lets nobody mount.")
    command = [unshare, "-rm", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603 (our own)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_50_times_killed_while_writing_and_all_that_is_served_is_right(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, "-m", "tests.tiers.disk.killed", str(tmp_path), "50", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)  # noqa: S603 (our own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("50 rounds"), done.stdout
