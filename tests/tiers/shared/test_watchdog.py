"""Outages are logged once, and calls that do not come back open the breaker, on a clock that the tests turn."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from kvtide.tiers import HIT, BackendDown, KeyResult, MemoryBackend, QueuedTier, TierKey, Verdict
from kvtide.tiers.breaker import Breaker
from kvtide.tiers.log_once import LogOnce
from kvtide.tiers.watchdog import Watchdog
from tests.contracts.tier_contract import PATIENCE_S, KeepingContract, answers, clear, key, lookup


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Fickle(MemoryBackend):
    """Is away, or keeps callers waiting, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.clock = Clock()
        self.slow_s = 0.0
        self.gate = threading.Event()
        self.gate.set()

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        assert self.gate.wait(PATIENCE_S)
        if self.away:
            raise BackendDown("gone fishing")
        self.clock.now_s += self.slow_s
        return super().lookup(keys)

    def clear(self) -> KeyResult:
        self.clock.now_s += self.slow_s
        return super().clear()


class Rig:
    """A tier of one thread whose store the test commands."""

    def __init__(self) -> None:
        self.store = Fickle()
        self.clock = self.store.clock
        breaker = Breaker(self.clock, failures_max=2, backoff_s=1.0)
        self.watchdog = Watchdog(breaker, "the store", overdue_s=0.5, clock=self.clock)
        self.tier = QueuedTier(self.store, threads=1, breaker=self.watchdog)

    def verdict(self) -> Verdict:
        return lookup(self.tier, [key(1)])[0].verdict


class TestWatched(KeepingContract):
    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        watchdog = Watchdog(Breaker(Clock()), "the store", overdue_s=60.0, clock=Clock())
        return QueuedTier(MemoryBackend(), threads=2, calls_max=calls_max or 1024, breaker=watchdog)


def test_an_outage_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.store.away = True
    assert [rig.verdict() for _ in range(5)] == [Verdict.FAILED] * 2 + [Verdict.THROTTLED] * 3
    assert ["gone fishing" in record.message for record in caplog.records] == [True]
    rig.clock.now_s += 1
    assert [rig.verdict() for _ in range(2)] == [Verdict.FAILED, Verdict.THROTTLED]
    assert len(caplog.records) == 1
    rig.store.away = False
    rig.clock.now_s += 2
    assert rig.verdict() is Verdict.MISS
    assert [record.message.endswith("works again") for record in caplog.records] == [False, True]
    rig.tier.close()


def test_f18_a_call_that_does_not_come_back_switches_the_tier_off_until_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.store.gate.clear()
    assert rig.tier.lookup(1, [key(1)])
    while not rig.watchdog._running:
        threading.Event().wait(0.001)
    assert rig.tier.stats().breaker == "closed"
    rig.clock.now_s += 0.6
    assert rig.tier.stats().breaker == "open"
    assert rig.tier.lookup(2, [key(1)])
    assert answers(rig.tier, 1)[2][0].verdict is Verdict.THROTTLED
    assert len(caplog.records) == 1
    rig.store.gate.set()
    assert answers(rig.tier, 1)[1][0].verdict is Verdict.FAILED
    assert rig.tier.stats().breaker == "closed"
    assert rig.verdict() is Verdict.MISS
    rig.tier.close()


def test_f18_calls_that_come_back_too_late_are_failures(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.store.slow_s = 0.6
    assert [rig.verdict() for _ in range(4)] == [Verdict.FAILED] * 2 + [Verdict.THROTTLED] * 2
    assert rig.tier.stats().breaker == "open"
    assert len(caplog.records) == 1
    rig.tier.close()


def test_a_clear_may_take_long() -> None:
    rig = Rig()
    rig.store.slow_s = 60.0
    assert clear(rig.tier) == HIT
    assert rig.tier.stats().breaker == "closed"
    rig.tier.close()


def test_an_outage_begins_and_ends_once_for_many_threads(caplog: pytest.LogCaptureFixture) -> None:
    outage = LogOnce(logging.getLogger("kvtide.test"), "it", meanwhile="wait")
    for calls in (outage.over, lambda: outage.began("so"), lambda: outage.began("again"), outage.over, outage.over):
        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [record.message for record in caplog.records] == ["kvtide: it: so; wait", "kvtide: it: works again"]
