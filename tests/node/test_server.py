"""The server takes those who may come, survives whatever they send, and forgets nobody who may still write."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide.node.ask import status_of
from kvtide.node.client import Client
from kvtide.node.credentials import Access
from kvtide.node.errors import Gone, NodeError, Refused
from kvtide.node.frames import BODY_BYTES_MAX, MAGIC, Decoder, Frame, Kind, header
from kvtide.node.hello import HELLO_BYTES_MAX, PROTOCOL, Hello, Role
from kvtide.node.peers import Limits
from tests.left_behind import Before
from tests.node.support import (
    ECHO,
    LARGE_BYTES,
    MANY,
    NONSENSE,
    SOON_S,
    Rig,
    held,
    serving,
    wait_to_read,
    wait_until,
)


def bare(rig: Rig) -> socket.socket:
    """Connect without a word."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(SOON_S)
    sock.connect(str(rig.path))
    return sock


def check_closed(sock: socket.socket) -> bytes:
    """See that the server closes a connection; return what it said before."""
    said = b""
    while data := _received(sock):
        said += data
    sock.close()
    return said


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionResetError:  # it was closed with bytes that nobody has read
        return b""


def connections(rig: Rig) -> int:
    count: int = rig.call(lambda: rig.server.connections)
    return count


# ---------------------------------------------------------------------- hellos


def test_a_scheduler_is_told_its_numbers_and_its_frames_go_to_the_handler(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler()
        assert client.welcome is not None
        assert client.welcome.epoch == "this-epoch"
        assert client.welcome.more == {"slots": 4}
        for body in (b"", b"x" * BODY_BYTES_MAX):
            answer = client.ask(ECHO, body, timeout_s=SOON_S)
            assert answer is not None
            assert answer.body == body
        client.close()


def test_a_worker_maps_the_memory_of_its_part_and_shares_it(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        workers = [rig.worker(scheduler, rank=rank) for rank in range(2)]
        first, second = (worker.arenas[0] for worker in workers)
        first.memory[3, :] = 7
        assert second.memory[3].sum() == 7000
        assert rig.handler.arena is not None
        assert rig.handler.arena.mapped.memory[3].sum() == 7000
        for client in (*workers, scheduler):
            client.close()
        second.memory[2, :] = 1  # what is mapped stays without any connection


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"epoch": "another-epoch"}, "another life of the node"),
        ({"owner": 4711}, "not connected any more"),
        ({"part": 9}, "no such part"),
    ],
)
def test_a_worker_that_does_not_belong_here_is_refused(tmp_path: Path, told: dict[str, object], why: str) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        with pytest.raises(Refused, match=why):
            rig.worker(scheduler, **told)
        rig.worker(scheduler).close()
        scheduler.close()
        assert rig.server.refused == 1
        assert why in rig.lines[0]


def test_a_rank_comes_once(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler, rank=1)
        with pytest.raises(Refused, match=rf"rank 1 of engine engine is connected already \(process {os.getpid()}\)"):
            rig.worker(scheduler, rank=1)
        worker.close()
        scheduler.close()


def test_an_engine_that_the_handler_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        with pytest.raises(Refused, match="not this one"):
            rig.scheduler("unwanted")
        assert rig.call(lambda: rig.server.lives.owners.members) == 0
        assert rig.handler.told == []
        rig.check_alive()


def test_who_is_not_allowed_is_told_so_without_being_asked_anything(tmp_path: Path) -> None:
    access = Access(uid=os.geteuid() + 1)
    with serving(tmp_path, access=access) as rig:
        client = Client(rig.path, Hello(Role.OPERATOR))
        with pytest.raises(Refused, match=f"this node is for user {access.uid}, and this is user {os.geteuid()}"):
            client.wait(SOON_S)
        client.close()
        assert f"refused process {os.getpid()}: this node is for user" in rig.lines[0]


def test_who_is_refused_and_has_left_by_then_is_said_once_and_is_not_closed_for_what_it_did(tmp_path: Path) -> None:
    with serving(tmp_path, access=Access(uid=os.geteuid() + 1)) as rig:
        gate = held(rig)
        bare(rig).close()  # as an engine does that does not want this node either
        gate.set()
        wait_until(lambda: rig.lines)
        rig.call(lambda: None)
        assert [line[: len("refused process")] for line in rig.lines] == ["refused process"]
        assert (rig.server.refused, rig.server.closed, rig.server.connections) == (1, 0, 0)


def test_a_member_of_the_group_is_allowed(tmp_path: Path) -> None:
    with serving(tmp_path, access=Access(uid=os.geteuid() + 1, group=os.getegid())) as rig:
        rig.check_alive()


def test_another_protocol_is_refused_by_name_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as rig:
        old = Hello(Role.OPERATOR).frame().body.replace(b'"protocol": %d' % PROTOCOL, b'"protocol": 0')
        sock = bare(rig)
        sock.sendall(header(Frame(Kind.HELLO, old)) + old)
        (frame,) = Decoder().feed(check_closed(sock))
        assert frame.kind == Kind.REFUSED
        assert b"upgrade kvtide of the engine" in frame.body
        assert "the engine speaks protocol 0 (kvtide" in rig.lines[0]
        rig.check_alive()


def test_more_connections_than_there_are_descriptors_for_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=2, for_more="raise `ulimit -n`")) as rig:
        two = [rig.scheduler("a"), rig.scheduler("b")]
        with pytest.raises(Refused, match="has 2 connections and takes no more; raise `ulimit -n`"):
            rig.scheduler("c")
        operator = Client(rig.path, Hello(Role.OPERATOR))  # can see what is there
        operator.wait(SOON_S)
        assert operator.ask(Kind.STATUS, timeout_s=SOON_S) is not None
        operator.close()
        for client in two:
            client.close()
        wait_until(lambda: connections(rig) == 0)
        rig.check_alive()


def test_operators_have_a_limit_too(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=2)) as rig:
        socks = [bare(rig) for _ in range(10)]
        assert b"takes no more" in check_closed(bare(rig))
        for sock in socks:
            sock.close()


def test_processes_that_are_waited_for_count_as_connections(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=2)) as rig:
        scheduler = rig.scheduler()
        rig.worker(scheduler).close()  # this process goes on, and has not said that it copies no more
        scheduler.close()
        wait_until(lambda: connections(rig) == 0)
        rig.scheduler("second")
        with pytest.raises(Refused, match="takes no more"):
            rig.scheduler("third")


def test_the_systems_limit_does_not_stop_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, Limits(connections=100, for_more="raise it")) as rig:
        accept = rig.server._door._listening.accept
        failures = iter([Gone("nobody can connect at the moment (Too many open files)")])

        def fail_once() -> socket.socket | None:
            for failure in failures:
                raise failure
            return accept()

        monkeypatch.setattr(rig.server._door._listening, "accept", fail_once)
        rig.check_alive()
        assert rig.lines == ["nobody can connect at the moment (Too many open files); raise it"]


# ---------------------------------------------------------------------- what makes no sense


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no frame"),
        (header(Frame(Kind.STATUS)), "a frame of kind 4 before a hello"),
        (header(Frame(Kind.HELLO, b"[" * 50)) + b"[" * 50, "no JSON"),
        (header(Frame(Kind.HELLO, b"{}")) + b"{}", "without the version"),
        (struct.pack("<4sBBxxII", MAGIC, 1, 0, 0, HELLO_BYTES_MAX + 1), f"and {HELLO_BYTES_MAX} are the most"),
    ],
)
def test_nonsense_instead_of_a_hello_costs_a_line_and_a_connection(tmp_path: Path, sent: bytes, why: str) -> None:
    with serving(tmp_path) as rig:
        sock = bare(rig)
        sock.sendall(sent)
        check_closed(sock)
        assert len(rig.lines) == 1
        assert rig.lines[0].startswith(f"closed the connection of process {os.getpid()}: ")
        assert why in rig.lines[0]
        rig.check_alive()


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (NONSENSE, b"", "nonsense"),
        (Kind.HELLO, b"{}", "a frame of kind 1, which is not for it to send"),
        (Kind.STATUS, b"", "a frame of kind 4, which is not for it to send"),
        (Kind.WELCOME, b"", "not for it to send"),
    ],
)
def test_nonsense_of_a_scheduler_ends_its_life_and_no_other(tmp_path: Path, kind: int, body: bytes, why: str) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler("clumsy")
        with pytest.raises(Gone):
            client.ask(kind, body, timeout_s=SOON_S)
        client.close()
        wait_until(lambda: rig.handler.told == [("ending", "clumsy"), ("over", "clumsy")])
        (line,) = rig.lines
        assert line.startswith(f"closed the connection of scheduler, process {os.getpid()} of engine clumsy: ")
        assert why in line
        rig.check_alive()


def test_frames_of_the_index_are_for_schedulers_only(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler)
        operator = Client(rig.path, Hello(Role.OPERATOR))
        operator.wait(SOON_S)
        for client in (operator, worker):
            with pytest.raises(Gone):
                client.ask(ECHO, timeout_s=SOON_S)
            client.close()
        scheduler.close()


def test_who_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    with serving(
        tmp_path, Limits(connections=100, hello_s=1.0)
    ) as rig:  # less, and a busy machine is late with its own
        sock = bare(rig)
        check_closed(sock)
        assert rig.lines == [f"closed the connection of process {os.getpid()}: no hello within 1 s"]
        rig.check_alive()


def test_half_a_frame_is_not_waited_for_long_but_an_idle_connection_is(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=100, half_frame_s=0.1)) as rig:
        idle, half = rig.scheduler("idle"), rig.scheduler("half")
        half._connection.socket.send(header(Frame(ECHO, b"body"))[:7])
        half._connection.socket.settimeout(SOON_S)
        check_closed(half._connection.socket)
        assert rig.lines[0].endswith("of engine half: half a frame for 0.1 s")
        assert idle.ask(ECHO, timeout_s=SOON_S) is not None
        idle.close()
        half.close()


def test_descriptors_that_a_client_sends_are_never_seen(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler()
        before = Before()
        socket.send_fds(client._connection.socket, [header(Frame(ECHO, tag=5))], [0, 1, 2])
        wait_until(client.poll)
        assert before.new_descriptors == []
        client.close()


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda kind, body, tag: header(Frame(kind, body, tag)) + body,
            st.sampled_from([*Kind, ECHO, NONSENSE, 255]),
            st.one_of(st.binary(max_size=40), st.sampled_from([b"{}", b'{"protocol": %d, "kvtide": ""}' % PROTOCOL])),
            st.integers(0, 9),
        ),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150)
@given(after_hello=st.sampled_from([None, *Role]), chunks=CHUNKS)
def test_the_server_survives_whatever_it_is_sent(
    tmp_path_factory: pytest.TempPathFactory, after_hello: Role | None, chunks: list[bytes]
) -> None:
    rig = shared(tmp_path_factory)
    sock = bare(rig)
    if after_hello is not None:
        hello = Hello(after_hello, engine="fuzz", namespace={"parts": [1]}, epoch="this-epoch").frame()
        sock.sendall(header(hello) + hello.body)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have been closed already
        for chunk in chunks:
            sock.sendall(chunk)
        sock.shutdown(socket.SHUT_WR)
    check_closed(sock)
    rig.check_alive()


_SHARED: list[Rig] = []


def shared(folders: pytest.TempPathFactory) -> Rig:
    """One server for all examples: what one leaves behind, another one meets."""
    if not _SHARED:
        _SHARED.append(Rig(folders.mktemp("fuzz") / "node.sock", Limits(connections=1000), None, grace_s=0.0))
    return _SHARED[0]


@pytest.fixture(scope="module", autouse=True)
def _close_shared() -> Iterator[None]:
    yield
    while _SHARED:
        _SHARED.pop().close()


# ---------------------------------------------------------------------- who does not read


def test_who_does_not_read_answers_is_read_no_more_and_costs_no_memory(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler()
        for _ in range(200):
            client.send(MANY)
        rig.check_alive()
        (peer,) = rig.call(lambda: list(rig.server._peers.values()))
        assert peer.is_blocked
        assert peer.connection.unsent_bytes <= LARGE_BYTES + 16
        answers = 0
        while answers < 200:
            wait_to_read(client)
            answers += len(client.poll())
        assert not rig.lines
        client.close()


def test_a_status_that_does_not_fit_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as rig:
        monkeypatch.setattr(rig.server, "_status", lambda: {"engines": "x" * BODY_BYTES_MAX})
        with pytest.raises(NodeError, match=r"has more to say than fits: 16777\d\d\d bytes"):
            status_of(rig.path)
        rig.check_alive()


def test_a_push_reaches_the_scheduler_and_nobody_once_it_is_gone(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler()
        (owner,) = rig.call(lambda: list(rig.server.lives.owners))
        rig.call(lambda: rig.server.send(owner, Frame(77, b"news")))
        wait_to_read(client)
        assert client.poll() == [Frame(77, b"news")]
        client.close()
        wait_until(lambda: connections(rig) == 0)
        rig.call(lambda: rig.server.send(owner, Frame(77, b"more")))


def test_a_push_to_a_scheduler_that_has_just_gone_ends_its_life_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        client = rig.scheduler()

        def push() -> None:  # before the loop can notice
            (owner,) = list(rig.server.lives.owners)
            client.close()
            rig.server.send(owner, Frame(77, b"news"))

        rig.call(push)
        assert rig.handler.told == [("ending", "engine"), ("over", "engine")]
        assert (rig.server.closed, rig.lines) == (0, []), "it has sent nothing bad"
        rig.check_alive()


def test_a_server_that_has_no_room_can_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise Gone("too many")

    with serving(tmp_path) as rig:
        monkeypatch.setattr(rig.server._door._listening, "accept", fail)
        sock = bare(rig)
        wait_until(lambda: rig.lines)
        rig.call(rig.server.stop)
        rig.call(lambda: rig.server.tick(0.0))
        sock.close()


def test_half_a_frame_of_who_does_not_read_is_not_its_fault(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(connections=100, half_frame_s=0.05)) as rig:
        client = rig.scheduler()
        for _ in range(20):
            client.send(MANY)
        client._connection.socket.send(header(Frame(ECHO, b"body")))
        wait_until(lambda: rig.call(lambda: [peer.is_blocked for peer in rig.server._peers.values()] == [True]))
        for _ in range(10):
            rig.call(lambda: rig.server.tick(time.monotonic() + 100.0))
        assert rig.lines == []
        client.close()


def test_stopping_tells_all_members_and_takes_nobody_new(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler)
        rig.call(rig.server.stop)
        for client in (scheduler, worker):
            wait_to_read(client)
            assert client.poll() == []
            assert client.is_stopping
            client.close()
        assert not rig.path.exists()
        wait_until(lambda: connections(rig) == 0)
