"""What every tier has to keep. A new implementation passes by subclassing the suite and building a tier.

`AnsweringContract` is about calls and answers, and holds for tiers that keep nothing. `KeepingContract` adds the bytes.
A tier may forget at any time; the suite keeps so little that none has a reason to.
"""

from __future__ import annotations

import contextlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pytest

from kvtide.tiers import HIT, MISS, CallResult, Item, KeyResult, Tier, TierKey, Verdict

PATIENCE_S = 30.0
"""A deadline that only a broken tier meets."""
BLOCK_BYTES = 8192


def key(number: int) -> TierKey:
    """Return the key of a block, as long as those of vLLM."""
    return number.to_bytes(4, "little") * 9


def block(number: int, size: int = BLOCK_BYTES) -> memoryview:
    """Return memory that holds the bytes of a block."""
    return memoryview(bytearray(random.Random(number).randbytes(size)))


def room(size: int = BLOCK_BYTES) -> memoryview:
    return memoryview(bytearray(size))


def answers(tier: Tier, count: int) -> dict[int, tuple[KeyResult, ...]]:
    """Wait for answers; no ticket comes twice."""
    found: dict[int, tuple[KeyResult, ...]] = {}
    while len(found) < count:
        assert tier.wait(PATIENCE_S)
        new = tier.poll()
        assert new, f"{len(found)} answers, {count} expected, and nothing is under way"
        for ticket, results in new:
            assert ticket not in found
            found[ticket] = results
    return found


def verdicts(results: Sequence[KeyResult]) -> list[Verdict]:
    return [result.verdict for result in results]


def put(tier: Tier, items: Sequence[Item]) -> tuple[KeyResult, ...]:
    assert tier.put(1, items)
    return answers(tier, 1)[1]


def get(tier: Tier, items: Sequence[Item]) -> tuple[KeyResult, ...]:
    assert tier.get(1, items)
    return answers(tier, 1)[1]


def lookup(tier: Tier, keys: Sequence[TierKey]) -> tuple[KeyResult, ...]:
    assert tier.lookup(1, keys)
    return answers(tier, 1)[1]


def clear(tier: Tier) -> KeyResult:
    assert tier.clear(1)
    (result,) = answers(tier, 1)[1]
    return result


class AnsweringContract(ABC):
    """Holds for every tier."""

    @abstractmethod
    def build(self, *, calls_max: int | None = None) -> Tier:
        """Return the tier under test, empty. `calls_max`: most calls of a kind; None: as it comes."""

    def release(self, tier: Tier) -> None:  # noqa: B027 - most have nothing to release
        """Give back what `build` took, after the tier was closed."""

    @contextlib.contextmanager
    def tier(self, *, calls_max: int | None = None) -> Iterator[Tier]:
        tier = self.build(calls_max=calls_max)
        try:
            yield tier
        finally:
            tier.close(PATIENCE_S)
            self.release(tier)

    def test_every_call_is_answered_exactly_once_with_a_result_per_key(self) -> None:
        with self.tier() as tier:
            assert tier.lookup(1, [key(1), key(2)])
            assert tier.put(2, [Item(key(1), block(1))])
            assert tier.get(3, [Item(key(9), room()), Item(key(8), room()), Item(key(7), room())])
            assert tier.clear(4)
            found = answers(tier, 4)
            assert {ticket: len(results) for ticket, results in found.items()} == {1: 2, 2: 1, 3: 3, 4: 1}
            assert tier.poll() == []

    def test_many_calls_at_a_time_are_each_answered_once(self) -> None:
        with self.tier() as tier:
            for ticket in range(60):
                assert tier.put(ticket, [Item(key(ticket), block(ticket))])
                assert tier.lookup(100 + ticket, [key(ticket)])
            assert set(answers(tier, 120)) == {*range(60), *range(100, 160)}
            assert tier.poll() == []

    def test_a_call_about_nothing_is_answered(self) -> None:
        with self.tier() as tier:
            assert tier.lookup(1, [])
            assert tier.put(2, [])
            assert tier.get(3, [])
            assert answers(tier, 3) == {1: (), 2: (), 3: ()}

    def test_nothing_is_found_in_an_empty_tier(self) -> None:
        with self.tier() as tier:
            assert verdicts(lookup(tier, [key(1), key(2)])) == [Verdict.MISS] * 2
            assert verdicts(get(tier, [Item(key(1), room())])) == [Verdict.MISS]

    def test_a_ticket_can_be_used_again_after_its_answer(self) -> None:
        with self.tier() as tier:
            assert put(tier, [Item(key(1), block(1))]) == (HIT,)
            assert put(tier, [Item(key(2), block(2))]) == (HIT,)

    def test_waiting_when_nothing_is_under_way_returns_at_once(self) -> None:
        with self.tier() as tier:
            assert tier.wait(0.0)
            assert tier.poll() == []

    def test_waiting_does_not_swallow_answers(self) -> None:
        with self.tier() as tier:
            assert tier.lookup(1, [key(1)])
            assert tier.wait(PATIENCE_S)
            assert tier.wait(PATIENCE_S)
            assert [ticket for ticket, _ in tier.poll()] == [1]

    def test_more_calls_than_fit_are_refused_and_never_answered(self) -> None:
        with self.tier(calls_max=3) as tier:
            taken = [tier.lookup(ticket, [key(1)]) for ticket in range(5)]
            assert taken == [True, True, True, False, False]
            assert set(answers(tier, 3)) == {0, 1, 2}
            assert tier.lookup(3, [key(1)])
            assert set(answers(tier, 1)) == {3}

    def test_a_closed_tier_refuses_calls_and_answers_what_had_ended(self) -> None:
        with self.tier() as tier:
            assert tier.lookup(1, [key(1)])
            assert tier.wait(PATIENCE_S)
            assert tier.close(PATIENCE_S)
            assert tier.close(PATIENCE_S)
            assert not tier.lookup(2, [key(1)])
            assert not tier.put(2, [Item(key(1), block(1))])
            assert not tier.get(2, [Item(key(1), room())])
            assert not tier.clear(2)
            assert [ticket for ticket, _ in tier.poll()] == [1]
            assert tier.poll() == []

    def test_close_answers_everything_that_was_taken(self) -> None:
        with self.tier() as tier:
            for ticket in range(40):
                assert tier.put(ticket, [Item(key(ticket), block(ticket))])
            assert tier.close(PATIENCE_S)
            found: list[CallResult] = tier.poll()
            assert sorted(ticket for ticket, _ in found) == list(range(40))
            assert {verdict for _, results in found for verdict in verdicts(results)} <= {Verdict.HIT, Verdict.FAILED}

    def test_close_leaves_no_thread_behind(self) -> None:
        before = set(threading.enumerate())
        with self.tier() as tier:
            lookup(tier, [key(1)])
            assert tier.close(PATIENCE_S)
            assert set(threading.enumerate()) <= before

    def test_stats_count_keys_by_call_and_verdict(self) -> None:
        with self.tier() as tier:
            lookup(tier, [key(1), key(2)])
            put(tier, [Item(key(1), block(1))])
            stats = tier.stats()
            assert stats.keys["lookup", "miss"] == 2
            assert stats.keys["put", "hit"] == 1
            assert stats.corrupt_records == 0


SIZES = [1, 100, 2048, 4096, 4097, 6144, 8192, 65_536, 200_000]


class KeepingContract(AnsweringContract):
    """Holds for every tier that keeps bytes. One that cannot keep blocks of different sizes says so in `sizes`."""

    sizes: Sequence[int] = SIZES

    def test_what_was_put_comes_back(self) -> None:
        with self.tier() as tier:
            items = [Item(key(number), block(number)) for number in range(20)]
            assert put(tier, items) == (HIT,) * 20
            assert lookup(tier, [key(3), key(99), key(19)]) == (HIT, MISS, HIT)
            wanted = [Item(key(number), room()) for number in reversed(range(20))]
            assert get(tier, wanted) == (HIT,) * 20
            assert all(item.buffer == block(number) for number, item in zip(reversed(range(20)), wanted, strict=True))

    def test_blocks_of_any_size_come_back(self) -> None:
        with self.tier() as tier:
            items = [Item(key(number), block(number, size)) for number, size in enumerate(self.sizes)]
            assert put(tier, items) == (HIT,) * len(items)
            wanted = [Item(key(number), room(size)) for number, size in enumerate(self.sizes)]
            assert get(tier, wanted) == (HIT,) * len(items)
            assert [item.buffer.tobytes() for item in wanted] == [item.buffer.tobytes() for item in items]

    @pytest.mark.parametrize("length", [1, 16, 36, 37, 100])
    def test_keys_of_any_length_are_told_apart(self, length: int) -> None:
        keys = [bytes([number]) * length for number in range(3)]
        with self.tier() as tier:
            put(tier, [Item(name, block(number)) for number, name in enumerate(keys[:2])])
            wanted = [Item(name, room()) for name in keys]
            assert get(tier, wanted) == (HIT, HIT, MISS)
            assert [wanted[0].buffer, wanted[1].buffer] == [block(0), block(1)]

    def test_memory_that_begins_anywhere_is_read_and_written_and_its_neighbours_are_not(self) -> None:
        for offset in (0, 1, 512, 2048, 4095):
            with self.tier() as tier:
                source = memoryview(bytearray(offset) + bytearray(block(1)))
                assert put(tier, [Item(key(1), source[offset:])]) == (HIT,)
                around = memoryview(bytearray(b"\xaa" * (offset + BLOCK_BYTES + 64)))
                assert get(tier, [Item(key(1), around[offset : offset + BLOCK_BYTES])]) == (HIT,)
                assert around[offset : offset + BLOCK_BYTES] == block(1)
                assert set(around[:offset]) | set(around[offset + BLOCK_BYTES :]) == {0xAA}

    def test_f8_a_buffer_of_another_length_is_a_miss(self) -> None:
        with self.tier() as tier:
            put(tier, [Item(key(1), block(1))])
            for size in (BLOCK_BYTES - 1, BLOCK_BYTES + 1, BLOCK_BYTES // 2, 2 * BLOCK_BYTES, 1):
                assert verdicts(get(tier, [Item(key(1), room(size))])) == [Verdict.MISS]
            assert get(tier, [Item(key(1), room())]) == (HIT,)

    def test_putting_what_is_there_is_done(self) -> None:
        with self.tier() as tier:
            put(tier, [Item(key(1), block(1))])
            assert put(tier, [Item(key(1), block(1)), Item(key(2), block(2))]) == (HIT, HIT)
            wanted = Item(key(1), room())
            assert get(tier, [wanted]) == (HIT,)
            assert wanted.buffer == block(1)

    def test_f9_nothing_is_found_after_clear(self) -> None:
        with self.tier() as tier:
            put(tier, [Item(key(number), block(number)) for number in range(10)])
            assert clear(tier) == HIT
            assert lookup(tier, [key(number) for number in range(10)]) == (MISS,) * 10
            assert put(tier, [Item(key(3), block(33))]) == (HIT,)
            wanted = Item(key(3), room())
            assert get(tier, [wanted]) == (HIT,)
            assert wanted.buffer == block(33)

    def test_f9_no_put_that_was_under_way_survives_a_clear(self) -> None:
        with self.tier() as tier:
            for ticket in range(50):
                assert tier.put(ticket, [Item(key(ticket), block(ticket))])
            assert tier.clear(50)
            found = answers(tier, 51)
            assert found[50] == (HIT,)
            assert lookup(tier, [key(number) for number in range(50)]) == (MISS,) * 50

    def test_puts_after_a_clear_are_kept(self) -> None:
        with self.tier() as tier:
            assert tier.clear(1)
            assert tier.put(2, [Item(key(1), block(1))])
            assert answers(tier, 2) == {1: (HIT,), 2: (HIT,)}
            assert lookup(tier, [key(1)]) == (HIT,)

    def test_stats_count_bytes_and_time(self) -> None:
        with self.tier() as tier:
            put(tier, [Item(key(1), block(1)), Item(key(2), block(2))])
            get(tier, [Item(key(1), room()), Item(key(9), room())])
            stats = tier.stats()
            assert (stats.bytes_put, stats.bytes_got) == (2 * BLOCK_BYTES, BLOCK_BYTES)
            assert stats.keys["get", "hit"] == stats.keys["get", "miss"] == 1
            assert stats.seconds["put"].count == stats.seconds["get"].count == 1
            assert stats.seconds["put"].total_s > 0
            assert stats.breaker == "closed"

    def test_random_calls_never_bring_back_other_bytes(self) -> None:
        rng = random.Random(5)
        with self.tier() as tier:
            for round_ in range(60):
                numbers = rng.sample(range(30), rng.randint(1, 8))
                choice = rng.random()
                if choice < 0.45:
                    put(tier, [Item(key(number), block(number)) for number in numbers])
                elif choice < 0.97:
                    wanted = [Item(key(number), room()) for number in numbers]
                    for number, item, result in zip(numbers, wanted, get(tier, wanted), strict=True):
                        assert result.verdict in (Verdict.HIT, Verdict.MISS), (round_, result)
                        assert result.verdict is Verdict.MISS or item.buffer == block(number)
                else:
                    clear(tier)
