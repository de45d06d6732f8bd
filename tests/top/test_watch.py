"""Several servers at once: one that hangs holds up no other, and nothing fails in silence."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kvtide.top import watch as watching
from kvtide.top.reading import Reading, parse
from kvtide.top.watch import Watch, read_once
from tests.top.fake import BUSY, fake_server, grown, metrics

WAIT_S = 30.0


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_server_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "TIMEOUT_S", 0.5)
    with fake_server("#" * 100_000) as slow, fake_server(metrics(**BUSY)) as quick:
        slow.delay_s = 0.01
        with Watch([slow.url, quick.url], 0.02) as watch:
            until(lambda: quick.asked > 5)
            # On a busy machine the other one may miss its half a second, too, now and then.
            until(lambda: [server.state for server in watch.servers()] == ["down", "up"])
            assert watch.servers()[0].why == "no answer within 0.5 s"


def test_every_reading_counts() -> None:
    with fake_server(metrics(**BUSY)) as server, Watch([server.url], 0.02) as watch:
        until(lambda: watch.rounds() > 2)
        server.text = metrics(**grown(BUSY, 4))
        asked = server.asked
        until(lambda: server.asked > asked + 2)
        (seen,) = watch.servers()
        assert seen.window is not None
        assert seen.window.requests == 30


def test_servers_are_read_once_and_at_the_same_time() -> None:
    with fake_server(metrics(**BUSY)) as one, fake_server(metrics(**grown(BUSY, 2))) as two:
        servers = read_once([one.url, two.url])
    assert [server.url for server in servers] == [one.url, two.url]
    assert [server.since_start.requests for server in servers if server.since_start] == [10, 20]
    assert (one.asked, two.asked) == (1, 1)


def test_a_mistake_of_ours_is_raised_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(url: str, timeout_s: float) -> Reading:
        raise AssertionError("our own mistake")

    monkeypatch.setattr(watching, "read", broken)
    with Watch(["http://127.0.0.1:9/metrics"], 0.02) as watch, pytest.raises(AssertionError, match="our own mistake"):
        until(lambda: not watch.servers())


def test_nothing_is_asked_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LEAVE_S", WAIT_S)  # what is being asked when it ends is answered
    with fake_server(metrics(**BUSY)) as server:
        with Watch([server.url], 0.02) as watch:
            until(lambda: watch.rounds() > 0)
        asked = server.asked
        time.sleep(0.1)
        assert server.asked == asked
    assert parse(server.text).has_kvtide
