"""Readings become what happened between them: through restarts, and while a server is away."""

from __future__ import annotations

import pytest

from kvtide.top.history import INTERVALS_MAX, History
from kvtide.top.reading import Reading, parse
from tests.top.fake import BUSY, grown, metrics


def reading(times: float) -> Reading:
    return parse(metrics(**grown(BUSY, times)))


def test_one_reading_is_all_since_the_start_and_no_rate() -> None:
    history = History("here")
    assert history.server().state == "waiting"
    history.add(reading(1), 100.0)
    server = history.server()
    assert server.state == "up"
    assert server.window is None
    assert server.since_start is not None
    assert server.since_start.requests == 10


def test_two_readings_make_rates() -> None:
    history = History("here")
    history.add(reading(1), 100.0)
    history.add(reading(3), 104.0)
    window = history.server().window
    assert window is not None
    assert (window.requests, window.seconds) == (20, 4.0)
    assert window.rate(window.moved_bytes["store"]) == 100 << 20


def test_the_window_is_the_last_minute() -> None:
    history = History("here")
    for second in range(0, 200, 10):
        history.add(reading(second), float(second))
    window = history.server().window
    assert window is not None
    assert (window.seconds, window.requests) == (60, 600)


def test_readings_far_apart_have_at_least_their_own_interval() -> None:
    history = History("here")
    history.add(reading(1), 0.0)
    history.add(reading(2), 500.0)
    window = history.server().window
    assert window is not None
    assert window.seconds == 500


def test_after_a_restart_only_what_the_new_server_counted_is_added() -> None:
    history = History("here")
    history.add(reading(5), 0.0)
    history.add(reading(6), 1.0)
    history.add(reading(2), 2.0)
    history.add(reading(3), 3.0)
    server = history.server()
    assert server.restarts == 1
    assert server.window is not None
    assert server.window.requests == 10 + 20 + 10
    assert server.since_start is not None
    assert server.since_start.requests == 30
    assert all(point is not None and point.requests >= 0 for point in server.points)


def test_a_restart_is_seen_by_one_counter_and_then_holds_for_all() -> None:
    """The new server has counted more of something already, and less of something else."""
    history = History("here")
    history.add(parse(metrics(kvtide_requests_total=10, kvtide_stored_blocks_total=5)), 0.0)
    history.add(parse(metrics(kvtide_requests_total=1, kvtide_stored_blocks_total=8)), 1.0)
    window = history.server().window
    assert window is not None
    assert window.blocks["stored"] == 8


def test_a_counter_that_is_gone_is_a_restart() -> None:
    history = History("here")
    history.add(parse(metrics(kvtide_requests_total=10, kvtide_stored_blocks_total=5)), 0.0)
    history.add(parse(metrics(kvtide_requests_total=12)), 1.0)
    assert history.server().restarts == 1


def test_a_server_that_was_away_is_shown_as_such_and_its_time_counts_when_it_is_back() -> None:
    history = History("here")
    history.add(reading(1), 0.0)
    history.add(reading(2), 1.0)
    history.miss("nobody listens there", 2.0)
    away = history.server()
    assert (away.state, away.why) == ("down", "nobody listens there")
    assert away.now is not None  # the last that was known
    assert away.points[-1] is None
    history.add(reading(4), 5.0)
    back = history.server()
    assert (back.state, back.why, back.restarts) == ("up", "", 0)
    assert back.points[-1] is not None
    assert back.points[-1].seconds == 4.0
    assert back.window is not None
    assert (back.window.seconds, back.window.requests) == (5.0, 30)


def test_a_server_that_never_answered_is_down() -> None:
    history = History("here")
    history.miss("no answer within 5 s", 0.0)
    assert history.server().state == "down"
    assert history.server().now is None


def test_a_server_without_kvtide_is_up_and_named() -> None:
    history = History("here")
    history.add(parse(metrics(num_requests_running=1)), 0.0)
    assert (history.server().state, history.server().why) == ("up", "kvtide is not in use there")


@pytest.mark.parametrize("fails", [False, True])
def test_no_more_is_kept_than_is_shown(fails: bool) -> None:
    history = History("here")
    for second in range(INTERVALS_MAX + 10):
        if fails:
            history.miss("gone", float(second))
        else:
            history.add(reading(second), float(second))
    assert len(history.server().points) == INTERVALS_MAX
