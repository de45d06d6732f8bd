"""The circuit breaker, on a clock that the tests turn."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from kvtide.tiers.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def opened(clock: Clock, *, failures: int = 1, **options: float) -> Breaker:
    breaker = Breaker(clock, failures_max=failures, backoff_s=1.0, **options)  # type: ignore[arg-type]
    for _ in range(failures):
        assert breaker.allows()
        breaker.failed()
    return breaker


def test_it_is_closed_at_first_and_allows_everything() -> None:
    breaker = Breaker(Clock())
    assert breaker.state == "closed"
    assert all(breaker.allows() for _ in range(10))


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(Clock(), failures_max=3)
    breaker.failed()
    breaker.failed()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    assert not breaker.allows()


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(Clock(), failures_max=2)
    for _ in range(10):
        breaker.failed()
        breaker.succeeded()
    assert breaker.state == "closed"


def test_after_the_pause_exactly_one_call_may_try() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 0.999
    assert not breaker.allows()
    clock.now_s += 0.001
    assert breaker.state == "half-open"
    assert [breaker.allows() for _ in range(5)] == [True, False, False, False, False]
    assert breaker.state == "half-open"


def test_a_probe_that_succeeds_closes_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 1
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.allows()
    assert breaker.allows()


def test_pauses_double_up_to_the_longest() -> None:
    clock = Clock()
    breaker = opened(clock, backoff_max_s=5.0)
    for pause_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        clock.now_s += pause_s - 0.001
        assert not breaker.allows()
        clock.now_s += 0.001
        assert breaker.allows()
        breaker.failed()


def test_a_closed_breaker_begins_again_with_the_short_pause() -> None:
    clock = Clock()
    breaker = opened(clock)
    for _ in range(3):
        clock.now_s += 60
        assert breaker.allows()
        breaker.failed()
    clock.now_s += 60
    assert breaker.allows()
    breaker.succeeded()
    breaker.failed()
    clock.now_s += 1
    assert breaker.allows()


def test_calls_from_before_it_opened_neither_close_it_nor_make_the_pause_longer() -> None:
    clock = Clock()
    breaker = opened(clock)
    breaker.succeeded()
    assert breaker.state == "open"
    for _ in range(10):
        breaker.failed()
    clock.now_s += 1
    assert breaker.allows()


def test_a_probe_that_never_comes_back_is_given_up() -> None:
    clock = Clock()
    breaker = opened(clock, backoff_max_s=10.0)
    clock.now_s += 1
    assert breaker.allows()
    clock.now_s += 9.999
    assert not breaker.allows()
    clock.now_s += 0.001
    assert breaker.allows()


def test_jitter_makes_pauses_shorter_by_at_most_half() -> None:
    clock = Clock()
    draws = iter([0.0, 0.5, 0.999])
    breaker = Breaker(clock, failures_max=1, backoff_s=1.0, backoff_max_s=1.0, jitter=lambda: next(draws))
    breaker.failed()
    for pause_s in (1.0, 0.75):
        clock.now_s += pause_s - 0.001
        assert not breaker.allows()
        clock.now_s += 0.002
        assert breaker.allows()
        breaker.failed()
    clock.now_s += 0.501
    assert breaker.allows()


def test_of_many_threads_one_gets_the_probe() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now_s += 1
    barrier = threading.Barrier(8)
    allowed: list[bool] = []

    def ask() -> None:
        barrier.wait()
        allowed.append(breaker.allows())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * 7 + [True]


EVENTS = st.lists(st.one_of(st.sampled_from(["ask", "good", "bad"]), st.floats(0.0, 20.0)), max_size=60)


@given(events=EVENTS, failures_max=st.integers(1, 4))
def test_whatever_happens_it_can_be_tried_again_and_never_by_two_at_a_time(
    events: list[str | float], failures_max: int
) -> None:
    clock = Clock()
    breaker = Breaker(clock, failures_max=failures_max, backoff_s=1.0, backoff_max_s=8.0)
    probe_until_s = 0.0
    for event in events:
        before = breaker.state
        if event == "ask":
            allowed = breaker.allows()
            assert allowed or before != "closed"
            assert not (allowed and before == "open")
            if allowed and before == "half-open":
                assert clock.now_s >= probe_until_s
                probe_until_s = clock.now_s + 8.0
        elif event == "good":
            breaker.succeeded()
            assert breaker.state != "half-open" or clock.now_s >= probe_until_s
            probe_until_s = 0.0
        elif event == "bad":
            breaker.failed()
            probe_until_s = 0.0
        else:
            assert isinstance(event, float)
            clock.now_s += event
    clock.now_s += 8.0
    assert breaker.allows()
