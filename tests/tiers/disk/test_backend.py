"""The disk store: restarts, budgets, eviction, locks, files that only the owner can read."""

from __future__ import annotations

import logging
import os
import random
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers import HIT, MISS, Item, KeyResult, Verdict
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.disk.layout import OVERHEAD_BYTES, bytes_needed, segment_layout
from kvtide.tiers.disk.lock import holder
from tests.contracts.tier_contract import block, key, room
from tests.tiers.support import NAMESPACE, disk_bytes, disk_config, disk_store


def items(numbers: range, size: int = 8192) -> list[Item]:
    return [Item(key(number), block(number, size)) for number in numbers]


def fill(folder: Path) -> Path:
    """Leave a store with ten blocks in a folder."""
    store = disk_store(folder)
    store.put(items(range(10)))
    store.close()
    return folder


def served(store: DiskBackend, numbers: range, size: int = 8192) -> list[int]:
    """Return the blocks that come back; each has to be what it was."""
    wanted = [Item(key(number), room(size)) for number in numbers]
    results = store.get(wanted)
    found = [number for number, result in zip(numbers, results, strict=True) if result == HIT]
    for number, item in zip(numbers, wanted, strict=True):
        assert number not in found or item.buffer == block(number, size)
    assert {result.verdict for result in results} <= {Verdict.HIT, Verdict.MISS}
    return found


def verdict(result: KeyResult) -> Verdict:
    return result.verdict


# ---------------------------------------------------------------------- restart


@pytest.mark.parametrize("io", ["auto", "buffered", "cached"])
def test_blocks_survive_a_restart(tmp_path: Path, io: str) -> None:
    store = disk_store(tmp_path, io=io)
    store.put(items(range(50)))
    store.close()
    store = disk_store(tmp_path, io=io)
    assert store.records == 50
    assert served(store, range(60)) == list(range(50))
    store.close()


def test_a_segment_goes_on_being_filled_after_a_restart(tmp_path: Path) -> None:
    for number in range(10):
        store = disk_store(tmp_path)
        assert store.put(items(range(number, number + 1))) == [HIT]
        store.close()
    store = disk_store(tmp_path)
    assert served(store, range(10)) == list(range(10))
    assert len(list(tmp_path.rglob("segment-*"))) == 1
    store.close()


def test_what_was_cleared_stays_away_after_a_restart(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    store.put(items(range(5)))
    assert store.clear() == HIT
    store.put(items(range(7, 9)))
    store.close()
    store = disk_store(tmp_path)
    assert served(store, range(10)) == [7, 8]
    store.close()


def test_a_block_larger_than_expected_is_refused_and_nothing_else(tmp_path: Path) -> None:
    store = disk_store(tmp_path, 1 << 20)
    results = store.put([Item(key(1), block(1)), Item(key(2), room(1 << 20)), Item(key(3), block(3))])
    assert list(map(verdict, results)) == [Verdict.HIT, Verdict.FAILED, Verdict.HIT]
    assert served(store, range(5)) == [1, 3]
    store.close()


# ---------------------------------------------------------------------- budget


@pytest.mark.parametrize("seed", range(4))
def test_f21_the_budget_is_never_exceeded_under_random_load(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randrange(bytes_needed(20_000), 1 << 20)
    for _ in range(4):
        store = disk_store(tmp_path, size, slot_bytes=20_000)
        for _ in range(15):
            first = rng.randrange(200)
            store.put(
                [Item(key(first + i), block(first + i, rng.randrange(1, 20_000))) for i in range(rng.randrange(8))]
            )
            assert store.bytes_used() <= store.bytes_budget() == size
            assert disk_bytes(tmp_path) <= size
            if rng.random() < 0.1:
                store.clear()
        store.close()
        size = max(bytes_needed(20_000), int(size * rng.uniform(0.5, 1.2)))


def test_f21_manifests_of_many_namespaces_fit_the_budget(tmp_path: Path) -> None:
    size = bytes_needed(8192) + 40_000
    for version in range(30):
        store = disk_store(tmp_path, size, namespace=replace(NAMESPACE, weights=str(version)))
        store.put(items(range(1)))
        assert disk_bytes(tmp_path) <= size
        store.close()


def test_f21_a_smaller_size_takes_effect_before_anything_is_written(tmp_path: Path) -> None:
    store = disk_store(tmp_path, 4 << 20)
    for first in range(0, 400, 20):
        store.put(items(range(first, first + 20)))
    store.close()
    assert disk_bytes(tmp_path) > 3 << 20
    store = disk_store(tmp_path, 1 << 20)
    assert disk_bytes(tmp_path) <= 1 << 20
    kept = served(store, range(400))
    assert kept
    assert kept == list(range(kept[0], 400)), "the newest are kept"
    store.close()


def test_f21_other_ranks_and_worlds_are_made_to_fit_too(tmp_path: Path) -> None:
    two = replace(NAMESPACE, world=2)
    for rank in range(2):
        store = disk_store(tmp_path, 8 << 20, namespace=two.for_rank(rank))
        store.put(items(range(300)))
        store.close()
    store = disk_store(tmp_path, 2 << 20, namespace=two.for_rank(0))
    assert disk_bytes(tmp_path) <= 2 << 20
    assert served(store, range(300))
    store.close()
    store = disk_store(tmp_path, 2 << 20)
    assert disk_bytes(tmp_path) <= 2 << 20
    assert [path.name for path in tmp_path.glob("rank-*")] == ["rank-0-of-1"]
    store.close()


def test_the_segment_that_nobody_used_for_longest_is_evicted(tmp_path: Path) -> None:
    store = disk_store(tmp_path, 1 << 20)
    layout = segment_layout(1 << 20, 8192)
    assert layout is not None
    per_segment = layout.capacity
    segments = ((1 << 20) - OVERHEAD_BYTES) // layout.cost_bytes
    total = per_segment * segments
    store.put(items(range(total)))
    assert len(served(store, range(total))) == total
    assert served(store, range(per_segment)) == list(range(per_segment)), "the oldest, used just now"
    store.put(items(range(1000, 1000 + per_segment)))
    gone = sorted(set(range(total)) - set(served(store, range(total))))
    assert gone == list(range(per_segment, 2 * per_segment)), "the second segment, and all of it"
    store.close()


def test_no_more_than_what_fits_is_promised(tmp_path: Path) -> None:
    store = disk_store(tmp_path, bytes_needed(8192))
    results = store.put(items(range(3)))
    assert list(map(verdict, results)) == [Verdict.HIT, Verdict.THROTTLED, Verdict.THROTTLED]
    assert served(store, range(3)) == [0]
    assert list(map(verdict, store.put(items(range(7, 8))))) == [Verdict.HIT]
    assert served(store, range(8)) == [7]
    store.close()


# ---------------------------------------------------------------------- namespaces


def test_f23_another_namespace_reads_nothing_and_the_log_says_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = disk_store(tmp_path)
    store.put(items(range(5)))
    store.close()
    assert not caplog.records
    store = disk_store(tmp_path, namespace=replace(NAMESPACE, dtype="bfloat16", weights="2"))
    assert served(store, range(5)) == []
    assert 'weights: stored "1", now "2"; dtype: stored "float32", now "bfloat16"' in caplog.text
    store.put(items(range(10, 12)))
    store.close()
    caplog.clear()
    store = disk_store(tmp_path)
    assert served(store, range(12)) == list(range(5)), "and the first one still has its own"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    store.close()


def test_f23_blocks_of_other_namespaces_are_the_first_to_go(tmp_path: Path) -> None:
    store = disk_store(tmp_path, 1 << 20)
    store.put(items(range(200)))
    store.close()
    store = disk_store(tmp_path, 1 << 20, namespace=replace(NAMESPACE, weights="2"))
    store.put(items(range(60)))
    assert len(served(store, range(60))) == 60
    store.close()


# ---------------------------------------------------------------------- ranks, locks, modes


def test_ranks_share_a_folder_and_see_their_own_part_only(tmp_path: Path) -> None:
    two = replace(NAMESPACE, world=2)
    first, second = (disk_store(tmp_path, namespace=two.for_rank(rank)) for rank in range(2))
    first.put(items(range(5)))
    second.put(items(range(5, 8)))
    assert (served(first, range(8)), served(second, range(8))) == ([0, 1, 2, 3, 4], [5, 6, 7])
    assert first.bytes_budget() == second.bytes_budget() == 2 << 20
    first.close()
    second.close()


def test_a_second_server_is_refused_and_told_which_process_is_there(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    with pytest.raises(ConfigError, match=rf"tiers\[0\].path=.* no other server uses, and process {os.getpid()} does"):
        disk_store(tmp_path)
    with pytest.raises(ConfigError, match=f"process {os.getpid()} does"):
        disk_store(tmp_path, namespace=replace(NAMESPACE, world=2, rank=1))
    assert store.put(items(range(1))) == [HIT]
    store.close()
    disk_store(tmp_path).close()


def test_a_second_process_is_refused_too(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    program = (
        "import sys; from pathlib import Path; from kvtide.errors import ConfigError\n"
        "from tests.tiers.support import disk_store\n"
        "try: disk_store(Path(sys.argv[1]))\n"
        "except ConfigError as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 (our own)
    assert f"process {os.getpid()} does" in done.stdout
    store.close()


def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = disk_store(tmp_path)
        store.put(items(range(3)))
        store.close()
    finally:
        os.umask(before)
    found = list(tmp_path.rglob("*"))
    assert len(found) > 4
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_encrypted_store_holds_no_plain_bytes_and_another_key_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_A", "aa" * 32)
    monkeypatch.setenv("KEY_B", "bb" * 32)
    text = memoryview(b"a secret in plain sight".ljust(8192, b"."))
    store = disk_store(tmp_path, encryption_key_env="KEY_A")
    store.put([Item(key(1), text)])
    store.close()
    assert all(b"plain sight" not in path.read_bytes() for path in tmp_path.rglob("segment-*"))
    store = disk_store(tmp_path, encryption_key_env="KEY_B")
    assert [result.verdict for result in store.get([Item(key(1), room())])] == [Verdict.MISS]
    assert (store.wrong_secret_records(), store.corrupt_records()) == (1, 0)
    assert store.put(items(range(1, 2))) == [HIT], "it may be put again"
    assert served(store, range(2)) == [1]
    store.close()


def test_room_that_is_not_the_store_s_own_is_not_counted_as_such(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(bytes(1000))
    assert disk_config(tmp_path).size == 4 << 20
    store = disk_store(tmp_path)
    store.put(items(range(2)))
    store.clear()
    store.close()
    assert (tmp_path / "holiday.jpg").exists()


@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_blocks_without_bytes_are_blocks(tmp_path: Path, io: str) -> None:
    store = disk_store(tmp_path, io=io)
    assert store.put([Item(key(1), block(1)), Item(key(2), room(0)), Item(key(3), block(3))]) == [HIT] * 3
    assert store.get([Item(key(2), room(0))]) == [HIT]
    assert served(store, range(1, 4, 2)) == [1, 3]
    store.close()


def test_more_segments_than_files_that_may_be_open_are_no_problem(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    store = disk_store(tmp_path, 8 << 20, slot_bytes=250_000)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, limits[1]))
        assert store.put(items(range(25), 250_000)) == [HIT] * 25
        assert len(list(tmp_path.rglob("segment-*"))) == 25
        assert served(store, range(25), 250_000) == list(range(25))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    store.close()


def test_looking_at_a_folder_leaves_its_lock_alone(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    lock = tmp_path / "rank-0-of-1" / "lock"
    before = lock.read_text()
    assert holder(lock.parent) == os.getpid()
    assert lock.read_text() == before
    store.close()
    assert holder(lock.parent) is None
    assert holder(tmp_path / "nowhere") is None


def test_misses_are_misses(tmp_path: Path) -> None:
    store = disk_store(tmp_path)
    assert store.lookup([key(1)]) == [MISS]
    store.close()
