"""What a queue adds to a backend: order, bounds, a breaker, and threads that nothing kills."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from kvtide.tiers import HIT, MISS, Faults, FaultyTier, Item, KeyResult, MemoryBackend, QueuedTier, TierKey, Verdict
from kvtide.tiers.breaker import Breaker, Switch
from kvtide.tiers.queued import AT_ONCE_MAX
from tests.contracts.tier_contract import PATIENCE_S, answers, block, clear, get, key, lookup, put, room, verdicts

THROTTLED, FAILED = Verdict.THROTTLED, Verdict.FAILED


class GatedBackend(MemoryBackend):
    """Notes what begins, and lets calls of one kind wait at a gate."""

    def __init__(self, gated: str = "") -> None:
        super().__init__()
        self.gated = gated
        self.gate = threading.Event()
        self.reached = threading.Semaphore(0)
        self.begun: list[str] = []

    def _note(self, name: str, keys: Sequence[TierKey]) -> None:
        self.begun.append(name + " " + ",".join(str(key_[0]) for key_ in keys))
        if name == self.gated:
            self.reached.release()
            self.gate.wait(PATIENCE_S)

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        self._note("lookup", keys)
        return super().lookup(keys)

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        self._note("put", [item.key for item in items])
        return super().put(items)

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        self._note("get", [item.key for item in items])
        return super().get(items)

    def clear(self) -> KeyResult:
        self._note("clear", [])
        return super().clear()


def item(number: int) -> Item:
    return Item(key(number), block(number))


def test_lookups_go_first_then_gets_then_puts() -> None:
    backend = GatedBackend("put")
    tier = QueuedTier(backend, threads=1)
    assert tier.put(0, [item(0)])
    backend.reached.acquire()
    assert tier.put(1, [item(1)])
    assert tier.get(2, [Item(key(2), room())])
    assert tier.lookup(3, [key(3)])
    backend.gate.set()
    answers(tier, 4)
    assert backend.begun == ["put 0", "lookup 3", "get 2", "put 1"]
    tier.close()


def test_puts_leave_a_thread_to_those_that_somebody_waits_for() -> None:
    backend = GatedBackend("put")
    tier = QueuedTier(backend, threads=3)
    for ticket in range(5):
        assert tier.put(ticket, [item(ticket)])
    for _ in range(2):
        backend.reached.acquire()
    assert lookup(tier, [key(9)]) == (MISS,), "while two puts hang and three wait"
    assert len([name for name in backend.begun if name.startswith("put")]) == 2
    backend.gate.set()
    answers(tier, 5)
    tier.close()


def test_a_large_call_is_shared_by_threads_and_answered_once_in_order() -> None:
    backend = GatedBackend()
    tier = QueuedTier(backend, threads=4, part_bytes=3 * 8192)
    assert put(tier, [item(number) for number in range(10)]) == (HIT,) * 10
    assert sorted(name.count(",") + 1 for name in backend.begun) == [1, 3, 3, 3]
    wanted = [Item(key(number), room()) for number in (0, 99, *range(1, 10))]
    assert get(tier, wanted) == (HIT, MISS, *(HIT,) * 9)
    tier.close()


def test_bytes_under_way_have_a_bound_and_a_single_larger_call_is_taken() -> None:
    backend = GatedBackend("put")
    tier = QueuedTier(backend, threads=2, bytes_max=3 * 8192)
    assert tier.put(0, [item(number) for number in range(5)])
    assert not tier.put(1, [item(9)])
    assert tier.get(2, [Item(key(9), room())]), "reads have a bound of their own"
    backend.gate.set()
    answers(tier, 2)
    assert tier.put(3, [item(9)])
    answers(tier, 1)
    tier.close()


def test_f9_a_clear_waits_for_the_put_that_runs_and_undoes_those_that_do_not() -> None:
    backend = GatedBackend("put")
    tier = QueuedTier(backend, threads=3)
    assert tier.put(0, [item(0)])
    backend.reached.acquire()
    backend.gated = ""
    assert tier.clear(1)
    assert tier.put(2, [item(2)])
    assert not tier.wait(0.0)
    assert "clear " not in backend.begun
    backend.gate.set()
    assert answers(tier, 3) == {0: (HIT,), 1: (HIT,), 2: (HIT,)}
    assert backend.begun == ["put 0", "clear ", "put 2"]
    assert lookup(tier, [key(0), key(2)]) == (MISS, HIT)
    tier.close()


def test_f9_puts_that_had_not_begun_when_a_clear_came_are_throttled() -> None:
    backend = GatedBackend("put")
    tier = QueuedTier(backend, threads=1)
    assert tier.put(0, [item(0)])
    backend.reached.acquire()
    assert tier.put(1, [item(1)])
    assert tier.clear(2)
    backend.gate.set()
    found = answers(tier, 3)
    assert (verdicts(found[1]), found[2]) == ([THROTTLED], (HIT,))
    assert lookup(tier, [key(0), key(1)]) == (MISS, MISS)
    tier.close()


# ---------------------------------------------------------------------- breaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def faulty(faults: Faults) -> tuple[FaultyTier, Clock]:
    clock = Clock()
    return FaultyTier(faults, breaker=Breaker(clock, failures_max=2, backoff_s=10.0)), clock


def test_f18_a_store_that_is_down_is_switched_off_and_tried_again_later() -> None:
    tier, clock = faulty(Faults(down=1.0))
    assert [verdicts(lookup(tier, [key(1)])) for _ in range(4)] == [[FAILED], [FAILED], [THROTTLED], [THROTTLED]]
    assert tier.stats().breaker == "open"
    clock.now_s = 11.0
    assert verdicts(lookup(tier, [key(1)])) == [FAILED]
    assert verdicts(lookup(tier, [key(1)])) == [THROTTLED]
    tier.backend.faults = Faults()
    clock.now_s = 100.0
    assert lookup(tier, [key(1)]) == (MISS,)
    assert tier.stats().breaker == "closed"
    tier.close()


def test_keys_that_fail_do_not_switch_a_store_off() -> None:
    tier, _ = faulty(Faults(failing=1.0))
    for _ in range(5):
        assert verdicts(put(tier, [item(1)])) == [FAILED]
    assert tier.stats().breaker == "closed"
    tier.close()


def test_f9_a_clear_is_answered_like_other_calls_when_the_store_is_down() -> None:
    tier, clock = faulty(Faults())
    tier.backend.faults = Faults(down=1.0)
    assert [clear(tier).verdict for _ in range(3)] == [FAILED, FAILED, THROTTLED]
    tier.backend.faults = Faults()
    clock.now_s = 11.0
    assert clear(tier) == HIT
    tier.close()


class HandSwitch(Switch):
    """A breaker that is opened by hand."""

    is_on = True

    @property
    def state(self) -> str:
        return "closed" if self.is_on else "open"

    def allows(self) -> bool:
        return self.is_on


def test_f18_what_waits_behind_stuck_threads_is_answered_when_the_breaker_opens() -> None:
    backend, switch = GatedBackend("get"), HandSwitch()
    tier = QueuedTier(backend, threads=1, breaker=switch)
    assert tier.get(1, [Item(key(1), room())])
    backend.reached.acquire()
    assert tier.get(2, [Item(key(2), room())])
    switch.is_on = False
    assert tier.wait(PATIENCE_S)
    assert {ticket: verdicts(results) for ticket, results in tier.poll()} == {2: [THROTTLED]}
    backend.gate.set()
    assert verdicts(answers(tier, 1)[1]) == [Verdict.MISS]
    tier.close()


# ---------------------------------------------------------------------- threads


class RudeBackend(MemoryBackend):
    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        raise SystemExit(3)

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        return []

    def close(self) -> None:
        raise OSError("stuck")

    def bytes_used(self) -> int:
        raise RuntimeError("lost count")


def test_f15_nothing_that_a_backend_does_ends_a_thread(caplog: pytest.LogCaptureFixture) -> None:
    tier = QueuedTier(RudeBackend(), threads=1)
    for _ in range(3):
        assert verdicts(lookup(tier, [key(1)])) == [FAILED]
        (result,) = get(tier, [Item(key(1), room())])
        assert "0 results for 1 keys" in result.why
        assert put(tier, [item(1)]) == (HIT,)
        assert tier.stats().bytes_used is None
    assert tier.close()
    assert caplog.text.count("which it never should") == 1, "once is enough"


class RegisteringBackend(MemoryBackend):
    registered: memoryview | None = None

    def register(self, memory: memoryview) -> None:
        self.registered = memory


def test_the_backend_hears_which_memory_will_be_used() -> None:
    backend = RegisteringBackend()
    tier = QueuedTier(backend, threads=1)
    memory = memoryview(bytearray(8))
    tier.register(memory)
    assert backend.registered is memory
    tier.close()


def test_memory_is_let_go_with_the_answer() -> None:
    tier = QueuedTier(MemoryBackend(), threads=1)
    memory = bytearray(8192)
    put(tier, [Item(key(1), memoryview(memory))])
    lookup(tier, [key(1)])
    memory.extend(b"x")  # a BufferError while anybody still looks at it
    tier.close()


def test_whoever_wants_to_be_told_is_told_when_there_is_something_to_poll() -> None:
    tier = QueuedTier(MemoryBackend(), threads=1)
    told = threading.Semaphore(0)
    tier.tell(told.release)
    assert tier.put(1, [item(1)])
    assert told.acquire(timeout=PATIENCE_S)
    assert [answer.ticket for answer in tier.poll()] == [1]
    assert not told.acquire(blocking=False)
    tier.close()


def test_who_looks_up_in_memory_needs_no_thread_and_is_switched_off_like_others() -> None:
    backend, breaker = GatedBackend("get"), Breaker(lambda: 0.0, failures_max=1)
    backend.looks_up_in_memory = True
    tier = QueuedTier(backend, threads=1, breaker=breaker)
    assert tier.put(1, [item(1)])
    assert verdicts(answers(tier, 1)[1]) == [HIT.verdict]
    assert tier.get(2, [Item(key(1), room())])
    backend.reached.acquire()  # the only thread is busy
    assert tier.lookup(3, [key(1), key(2)])
    (answer,) = tier.poll()
    assert (answer.ticket, verdicts(answer.results)) == (3, [HIT.verdict, MISS.verdict])
    breaker.failed()
    assert tier.lookup(4, [key(1)])
    (answer,) = tier.poll()
    assert verdicts(answer.results) == [THROTTLED]
    backend.gate.set()
    assert tier.close(PATIENCE_S)
    assert not tier.lookup(5, [key(1)]), "it is closed"


def test_who_looks_up_in_its_own_thread_is_not_kept_from_ending() -> None:
    class Stopped(MemoryBackend):
        looks_up_in_memory = True

        def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
            raise SystemExit("SIGTERM came while it looked")

    tier = QueuedTier(Stopped(), threads=1)
    with pytest.raises(SystemExit):
        tier.lookup(1, [key(1)])
    assert tier.close(PATIENCE_S)


def test_many_keys_are_looked_up_by_a_thread_though_they_are_in_memory() -> None:
    backend = GatedBackend("lookup")
    backend.looks_up_in_memory = True
    tier = QueuedTier(backend, threads=1)
    assert tier.lookup(1, [key(number % 200) for number in range(AT_ONCE_MAX + 1)])
    assert tier.poll() == []
    backend.gate.set()
    assert len(answers(tier, 1)[1]) == AT_ONCE_MAX + 1
    assert tier.close(PATIENCE_S)
