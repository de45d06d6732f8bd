"""Lines for the operator, words to systemd, settings, metrics, the loop."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from kvtide.copy.memory_left import MemoryLeft
from kvtide.errors import ConfigError
from kvtide.node.lines import AGAIN_S, LINES_MAX, PERIOD_S, Lines, News
from kvtide.node.loop import READ, Loop
from kvtide.node.metrics import Metrics
from kvtide.node.peers import limits_of_process
from kvtide.node.settings import check_memory
from kvtide.node.spaces import Spaces
from kvtide.node.systemd import notify
from tests.left_behind import Before
from tests.node.support import SOON_S, wait_until

# ---------------------------------------------------------------------- lines


def test_lines_are_written_in_their_order_and_all_of_them_before_the_end() -> None:
    written: list[str] = []
    lines = Lines(written.append)
    for number in range(50):
        lines(f"line {number}")
    lines.close()
    assert written == [f"line {number}" for number in range(50)]


def test_too_many_lines_are_left_out_and_counted() -> None:
    written: list[str] = []
    now_s = [0.0]
    lines = Lines(written.append, clock_s=lambda: now_s[0])
    for number in range(LINES_MAX):
        lines(f"line {number}")
    for _ in range(7):
        lines("too many")
    wait_until(lambda: len(written) == LINES_MAX)
    now_s[0] += PERIOD_S
    lines("again")
    lines.close()
    assert len(written) == LINES_MAX + 1
    assert written[-1] == "again (7 lines before this one left out)"


def test_a_terminal_that_is_stopped_stops_nobody() -> None:
    goes_on, written = threading.Event(), []

    def write(line: str) -> None:
        goes_on.wait(SOON_S)
        written.append(line)

    lines = Lines(write)
    for _ in range(3 * LINES_MAX):
        lines("said")
    goes_on.set()
    lines.close()
    assert 0 < len(written) <= LINES_MAX + 1


def test_a_terminal_that_is_gone_ends_nobody() -> None:
    calls: list[str] = []

    def write(line: str) -> None:
        calls.append(line)
        raise BrokenPipeError

    lines = Lines(write)
    lines("one")
    lines("two")
    lines.close()
    assert calls == ["one", "two"]


# ---------------------------------------------------------------------- systemd


@pytest.mark.parametrize("is_abstract", [True, False])
def test_systemd_hears_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool) -> None:
    name = f"@kvtide-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.settimeout(SOON_S)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1", "STATUS=fine")
        assert systemd.recv(100) == b"READY=1\nSTATUS=fine"


@pytest.mark.parametrize("address", ["", "/not/there", "vsock:2:1"])
def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


# ---------------------------------------------------------------------- settings


def test_more_memory_than_the_container_has_is_refused_by_name() -> None:
    left = MemoryLeft(1000, "are left of the 4000 in /sys/fs/cgroup/app/memory.max")
    check_memory("1000", 1000, left, 0)
    with pytest.raises(
        ConfigError, match=r"memory='2K': expected at most the 1000 bytes .* of the 4000 in .*memory.max"
    ):
        check_memory("2K", 2048, left, 0)
    check_memory("2K", 2048, left, 4096)  # huge pages that were set aside are not among what is left


def test_there_is_room_for_as_many_connections_as_there_are_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda _, limit: asked.append(limit))
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    limits = limits_of_process()
    assert asked == [(1024, 1024)]
    assert limits.connections == (1024 - 128) // 2
    assert "1024 files: raise `ulimit -n`" in limits.for_more


# ---------------------------------------------------------------------- metrics


def test_metrics_are_what_was_published_last() -> None:
    before = Before()
    metrics = Metrics(0)
    spaces = Spaces(1000, lambda _: None)
    published = {"up_s": 1.5, "memory_bytes": 77, "connections": 2, "connections_max": 9, "refused": 3, "closed": 0}
    told = {"epoch": "e", "kvtide": "1.2", "protocol": 1, "policy": "lru", "engines": [{"state": "ending"}]}
    metrics.publish({**published, **told, **spaces.status()})
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=SOON_S) as answer:
        text = answer.read().decode()
    for line in (
        'kvtide_node_build_info{epoch="e",kvtide="1.2",policy="lru",protocol="1"} 1.0',
        "kvtide_node_up_seconds 1.5",
        "kvtide_node_memory_bytes 77.0",
        "kvtide_node_free_bytes 1000.0",
        'kvtide_node_engines{state="ending"} 1.0',
        'kvtide_node_engines{state="open"} 0.0',
        'kvtide_node_share_bytes{model=""} 1000.0',
        "kvtide_node_refused_total 3.0",
    ):
        assert line in text.splitlines()
    metrics.close()
    wait_until(lambda: not before.new_threads)
    before.check()


def test_who_holds_metrics_up_is_not_waited_for_and_other_pages_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.node.metrics._Handler.timeout", 0.1)
    metrics = Metrics(0)
    held = [socket.create_connection(("127.0.0.1", metrics.port), timeout=SOON_S) for _ in range(3)]
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics?x=1", timeout=SOON_S) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/", timeout=SOON_S)
    refused.value.close()
    for sock in held:
        assert sock.recv(1) == b""
        sock.close()
    metrics.close()


def test_f29_who_sends_a_request_bit_by_bit_holds_up_neither_metrics_nor_the_end_of_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvtide.node.metrics._Handler.timeout", 0.5)
    metrics = Metrics(0)
    ended = threading.Event()

    def drip(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while not ended.wait(0.02):
                sock.send(b"G")

    dripping = []
    for _ in range(2):
        sock = socket.create_connection(("127.0.0.1", metrics.port), timeout=SOON_S)
        dripping.append(threading.Thread(target=drip, args=(sock,)))
        dripping[-1].start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=SOON_S) as answer:
            assert answer.status == 200
    finally:
        ended.set()
        for thread in dripping:
            thread.join()
        metrics.close()


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics={port}: expected a port that can be used \(Address already"):
            Metrics(port)


def test_a_line_is_news_once_and_again_after_a_while() -> None:
    now_s = [0.0]
    news = News(clock_s=lambda: now_s[0])
    assert [news.is_new(line) for line in ("a", "b", "a", "b")] == [True, True, False, False]
    now_s[0] = AGAIN_S
    assert [news.is_new("a"), news.is_new("a")] == [True, False]
    for number in range(LINES_MAX):
        assert news.is_new(str(number))
    assert len(news._said_s) <= LINES_MAX


# ---------------------------------------------------------------------- the loop


def test_a_descriptor_that_was_forgotten_in_the_same_round_is_not_called() -> None:
    loop, calls = Loop(), []
    pipes = [os.pipe(), os.pipe()]

    def forget_both(name: str, _: int) -> None:
        calls.append(name)
        for reading, _ in pipes:
            loop.forget(reading)
        loop.stop()

    for name, (reading, writing) in zip("ab", pipes, strict=True):
        loop.watch(reading, READ, partial(forget_both, name))
        os.write(writing, b"x")
    loop.run(lambda _: None)
    assert len(calls) == 1
    loop.close()
    for pipe in pipes:
        for descriptor in pipe:
            os.close(descriptor)


def test_it_ticks_and_runs_what_other_threads_post() -> None:
    loop = Loop(tick_s=0.01)
    ticks: list[float] = []
    posted: list[threading.Thread] = []
    thread = threading.Thread(target=loop.run, args=(ticks.append,))
    thread.start()
    wait_until(lambda: len(ticks) >= 2)
    loop.post(lambda: posted.append(threading.current_thread()))
    wait_until(lambda: posted)
    assert posted == [thread]
    assert ticks[0] <= time.monotonic()
    loop.post(loop.stop)
    thread.join(SOON_S)
    loop.close()
    loop.post(lambda: posted.append(thread))  # a signal that comes late
    assert len(posted) == 1


def test_what_is_to_be_called_later_is_called_once_in_order_and_not_before() -> None:
    loop = Loop(tick_s=60.0)
    begin_s = time.monotonic()
    called: list[tuple[str, float]] = []

    def call(name: str) -> None:
        called.append((name, time.monotonic() - begin_s))
        if name == "second":
            loop.later(0.01, partial(call, "third"))
        elif name == "third":
            loop.stop()

    loop.later(0.03, partial(call, "second"))
    loop.later(0.02, partial(call, "first"))
    loop.run(lambda _: None)
    assert [name for name, _ in called] == ["first", "second", "third"]
    for (_, at_s), least_s in zip(called, (0.02, 0.03, 0.04), strict=True):
        assert at_s >= least_s
    loop.close()


def test_what_is_posted_again_and_again_does_not_keep_others_waiting() -> None:
    loop = Loop(tick_s=60.0)
    reading, writing = os.pipe()

    def again() -> None:
        loop.post(again)

    loop.watch(reading, READ, lambda _: loop.stop())
    loop.post(again)
    os.write(writing, b"x")
    loop.run(lambda _: None)
    loop.close()
    os.close(reading)
    os.close(writing)
