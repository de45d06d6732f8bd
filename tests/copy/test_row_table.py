"""Which slot has which row, for one process and for many."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kvtide.copy import row_table, shared_memory
from kvtide.copy.row_table import FileLock, RowTable
from kvtide.errors import CopyError
from tests.left_behind import Before


@pytest.fixture
def memory() -> Iterator[int]:
    offer = shared_memory.make(4096)
    yield offer.descriptor
    os.close(offer.descriptor)


def array(*slots: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(slots, dtype=np.int64)


def test_slots_have_rows_in_their_order_as_long_as_there_are_any() -> None:
    table = RowTable(10, 3)
    assert table.take(array(7, 2), 3) == 2
    assert table.take(array(5, 9), 3) == 1
    assert table.rows_of(array(7, 2, 5, 9, 0)).tolist() == [0, 1, 2, -1, -1]
    assert (table.rows, table.used) == (3, 3)


def test_a_row_is_free_when_its_slot_is_forgotten() -> None:
    table = RowTable(10, 2)
    table.take(array(7, 2), 2)
    table.forget(array(7, 3))
    assert table.used == 1
    assert table.take(array(4, 5), 2) == 1
    assert table.rows_of(array(7, 4, 5)).tolist() == [-1, 0, -1]


def test_only_rows_that_can_be_used_by_now_are_given() -> None:
    table = RowTable(10, 4)
    assert table.take(array(1, 2, 3), 2) == 2
    assert table.take(array(3), 2) == 0
    assert table.take(array(3), 4) == 1


def test_a_slot_that_takes_another_row_gives_the_first_one_up() -> None:
    table = RowTable(10, 2)
    table.take(array(1), 2)
    table.take(array(1), 2)
    assert (table.used, table.rows_of(array(1)).tolist()) == (1, [1])


@pytest.mark.parametrize("seed", range(20))
def test_no_two_slots_ever_have_the_same_row(seed: int) -> None:
    rng, table = random.Random(seed), RowTable(40, 6)
    has: dict[int, int] = {}
    for _ in range(200):
        slots = rng.sample(range(40), rng.randint(1, 8))
        table.forget(array(*slots))
        for slot in slots:
            has.pop(slot, None)
        placed = table.take(array(*slots), 6)
        assert placed == min(len(slots), 6 - len(has))
        has.update(zip(slots, table.rows_of(array(*slots[:placed])).tolist(), strict=False))
        assert len(set(has.values())) == len(has) == table.used
        assert table.rows_of(array(*has)).tolist() == list(has.values())


def test_rows_far_behind_are_found_too() -> None:
    table = RowTable(20_000, 10_000)
    assert table.take(np.arange(9_990), 10_000) == 9_990
    table.forget(array(5, 9_000))
    assert table.take(array(15_000, 15_001, 15_002), 9_999) == 3
    assert table.rows_of(array(15_000, 15_001, 15_002)).tolist() == [5, 9_000, 9_990]
    assert table.take(np.arange(16_000, 16_020), 9_999) == 8
    assert table.take(array(17_000), 0) == 0


def test_what_somebody_has_written_over_it_is_no_row() -> None:
    memory = np.full(row_table.table_bytes(4, 2), 0x7F, dtype=np.uint8)
    table = RowTable(4, 2, memory)
    with pytest.raises(CopyError, match="does not exist: somebody has written over the memory that is shared"):
        table.rows_of(array(1))
    assert table.take(array(0), 2) == 1, "and what was written about others does no harm"
    assert table.rows_of(array(0)).tolist() == [0]


def test_a_lock_is_of_all_that_have_the_file_and_does_not_wait_for_ever(memory: int) -> None:
    before = Before()
    ours, theirs = FileLock(memory), FileLock(memory)
    with ours, pytest.raises(CopyError, match="does not let go of the shared table"), theirs:
        pass
    with theirs, pytest.raises(CopyError, match="does not let go"), ours:
        pass
    for lock in (ours, theirs, ours):
        lock.close()
    before.check()


def test_a_lock_is_of_one_thread_at_a_time(memory: int) -> None:
    lock, found = FileLock(memory), list[str]()

    def other() -> None:
        try:
            with lock:
                found.append("it had the lock")
        except CopyError:
            found.append("it had not")

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert found == ["it had not", "it had the lock"]
    lock.close()


def test_who_waited_in_vain_has_nothing_and_may_try_again(memory: int) -> None:
    ours, theirs = FileLock(memory), FileLock(memory)
    with theirs, pytest.raises(CopyError), ours:
        pass
    with ours:
        pass
    ours.close()
    theirs.close()
