"""Connections over real sockets: nothing blocks, nothing is kept without a bound, no descriptor is leaked."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide.node.connection import UNSENT_BYTES_MAX, Connection
from kvtide.node.errors import BadFrame, Gone
from kvtide.node.frames import BODY_BYTES_MAX, DESCRIPTORS_MAX, Frame, header
from tests.left_behind import Before


@contextmanager
def pair(*, takes_descriptors: bool = True) -> Iterator[tuple[socket.socket, Connection]]:
    """Two ends: a bare one and ours. Whatever happens, no descriptor is left."""
    before = Before()
    theirs, ours = socket.socketpair()
    connection = Connection(ours, takes_descriptors=takes_descriptors)
    try:
        yield theirs, connection
    finally:
        theirs.close()
        connection.close()
    assert before.new_descriptors == []


def send_descriptors(sock: socket.socket, data: bytes, count: int) -> None:
    """Send bytes with `count` descriptors of nothing."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor] * count))])
    os.close(descriptor)


def test_nothing_to_read_is_no_frame_and_does_not_wait() -> None:
    with pair() as (_, connection):
        assert connection.receive() == []


def test_frames_go_both_ways_with_their_descriptors() -> None:
    with pair() as (theirs, connection):
        other = Connection(theirs)
        memory = os.memfd_create("test")
        os.write(memory, b"here")
        other.send(Frame(40, b"body", 7, (memory, memory)))
        os.close(memory)
        (frame,) = connection.receive()
        assert frame[:3] == (40, b"body", 7)
        for descriptor in frame.descriptors:
            assert os.pread(descriptor, 4, 0) == b"here"
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
        connection.send(Frame(41))
        assert other.receive() == [Frame(41)]


def test_a_frame_larger_than_the_sockets_buffer_arrives_whole_with_its_descriptor() -> None:
    with pair() as (theirs, connection):
        other = Connection(theirs)
        memory = os.memfd_create("test")
        body = os.urandom(BODY_BYTES_MAX)
        other.send(Frame(40, body, 0, (memory,)))
        assert other.unsent_bytes > 0
        found: list[Frame] = []
        while not found:
            found = connection.receive()
            other.flush()
        assert found[0].body == body
        os.close(found[0].descriptors[0])
        os.close(memory)


def test_who_does_not_read_is_given_up_at_the_bound() -> None:
    with pair() as (_, connection):
        large = Frame(40, bytes(BODY_BYTES_MAX))
        for _ in range(UNSENT_BYTES_MAX // BODY_BYTES_MAX):
            connection.send(large)
        with pytest.raises(Gone, match="does not read"):
            connection.send(large)
        assert connection.unsent_bytes <= UNSENT_BYTES_MAX + BODY_BYTES_MAX + 16


@pytest.mark.parametrize("takes_descriptors", [True, False])
def test_an_end_is_told_apart_from_nothing(takes_descriptors: bool) -> None:
    with pair(takes_descriptors=takes_descriptors) as (theirs, connection):
        theirs.close()
        with pytest.raises(Gone, match="closed"):
            connection.receive()
        with pytest.raises(Gone, match="broke"):
            connection.send(Frame(40))


def test_what_was_said_before_the_end_can_be_read_after_sending_has_failed() -> None:
    with pair() as (theirs, connection):
        theirs.sendall(header(Frame(41)))
        theirs.close()
        with pytest.raises(Gone, match="broke"):
            connection.send(Frame(40))
        connection.flush()
        assert connection.receive() == [Frame(41)]
        with pytest.raises(Gone, match="closed"):
            connection.receive()


def test_a_connection_that_takes_no_descriptors_never_has_any() -> None:
    with pair(takes_descriptors=False) as (theirs, connection):
        send_descriptors(theirs, header(Frame(40)), 5)
        before = Before()
        assert connection.receive() == [Frame(40)]
        assert before.new_descriptors == []


def test_more_descriptors_than_a_frame_may_have_are_closed_and_refused() -> None:
    with pair() as (theirs, connection):
        send_descriptors(theirs, header(Frame(40, descriptors=(0,) * DESCRIPTORS_MAX)), DESCRIPTORS_MAX + 1)
        with pytest.raises(BadFrame, match="lost"):
            connection.receive()


def test_descriptors_nobody_asked_for_are_closed_with_the_connection() -> None:
    with pair() as (theirs, connection):
        send_descriptors(theirs, header(Frame(40)), 3)
        with pytest.raises(BadFrame, match="no frame asked for"):
            connection.receive()


def test_closing_in_the_middle_of_a_frame_closes_its_descriptors() -> None:
    with pair() as (theirs, connection):
        send_descriptors(theirs, header(Frame(40, b"body", descriptors=(0, 0))), 2)
        assert connection.receive() == []


@settings(max_examples=60)
@given(
    sent=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 3)), min_size=1, max_size=8),
    good=st.booleans(),
    takes_descriptors=st.booleans(),
)
def test_garbage_with_descriptors_leaves_nothing_behind(
    sent: list[tuple[bytes, int]], good: bool, takes_descriptors: bool
) -> None:
    with pair(takes_descriptors=takes_descriptors) as (theirs, connection):
        for data, count in sent:
            body = header(Frame(40, data, descriptors=(0,) * count)) + data if good else data
            send_descriptors(theirs, body, count) if count else theirs.sendall(body)
        theirs.close()
        try:
            while True:
                for frame in connection.receive():
                    for descriptor in frame.descriptors:
                        os.close(descriptor)
        except (BadFrame, Gone):
            pass
