"""Threads that wait for Mooncake's client: they give way, a few at a time, and never swallow what a call brings."""

from __future__ import annotations

import os
import threading

import pytest

from kvtide.tiers.mooncake import waiters as waiters_module
from kvtide.tiers.mooncake.waiters import NICENESS, RESPITE_S, STARVED_CALLS, STARVED_S, Waiters
from tests.tiers.shared.servers import until


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_calls_are_made_by_threads_of_low_priority_and_the_caller_keeps_its_own() -> None:
    waiters = Waiters("test-low", 1)
    before = niceness()
    assert waiters.call(niceness) == max(before, NICENESS)
    assert niceness() == before
    waiters.stop()


def test_a_caller_gets_what_its_call_returned_or_raised() -> None:
    waiters = Waiters("test-result", 1)
    with pytest.raises(ZeroDivisionError):
        waiters.call(divmod, 1, 0)
    assert waiters.call(divmod, 7, 2) == (3, 1)
    waiters.stop()


def test_as_many_calls_as_agreed_run_at_a_time() -> None:
    waiters = Waiters("test-many", 2)
    both = threading.Barrier(2)
    callers = [threading.Thread(target=waiters.call, args=(both.wait, 10.0)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10.0)
    assert not both.broken
    waiters.stop()


def test_the_threads_end_when_they_are_told_to() -> None:
    waiters = Waiters("test-stop", 3)
    assert len(threads("test-stop")) == 3
    waiters.stop()
    until(lambda: not threads("test-stop"))


class Clock:
    """Goes on when calls say so, and none of them has a core meanwhile."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return 0.0

    def starve(self) -> None:
        self.now_s += 2 * STARVED_S


def test_threads_that_starve_let_the_callers_make_their_calls_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(waiters_module, "time", clock)
    waiters = Waiters("test-starved", 1)
    for _ in range(STARVED_CALLS - 1):
        waiters.call(clock.starve)
        assert waiters.call(threading.get_ident) != threading.get_ident()
    for _ in range(STARVED_CALLS):
        assert waiters.call(threading.get_ident) != threading.get_ident()
        waiters.call(clock.starve)
    assert waiters.call(threading.get_ident) != threading.get_ident(), "never so many in a row"
    for _ in range(STARVED_CALLS + 1):
        waiters.call(clock.starve)
    assert waiters.call(threading.get_ident) == threading.get_ident()
    clock.now_s += 2 * RESPITE_S
    assert waiters.call(threading.get_ident) != threading.get_ident(), "the respite is over"
    waiters.stop()
