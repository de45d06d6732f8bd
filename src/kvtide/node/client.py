"""The other side: how a process talks to a node. Nothing waits longer than it is told to."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from kvtide.node.connection import Connection
from kvtide.node.credentials import check_node, credentials_of
from kvtide.node.errors import Gone, NodeError, NoNode, Refused
from kvtide.node.frames import TAGS, Frame, Kind
from kvtide.node.hello import Hello, Welcome, read_welcome
from kvtide.node.mapped import MappedArena

OTHERS_MAX = 1000
"""Frames that came unasked and that nobody has looked at."""
NOTICES_MAX = 100
NOTICE_CHARS_MAX = 500
_ABOUT_NODE = (Kind.STOPPING, Kind.NOTICE)
"""Frames that are nobody's answer."""


class Client:
    """A connection to a node. It begins with a hello; `welcome` is there when the node has answered.

    `close` it when anything is raised. It belongs to the process that made it: after a fork it is closed in the child.

    Raises:
        NoNode: nobody listens there at the moment.
        Refused: the node must not be trusted.

    """

    def __init__(self, path: Path, hello: Hello) -> None:
        self._path = path
        self.welcome: Welcome | None = None
        self.arenas: tuple[MappedArena, ...] = ()
        self.notices: list[str] = []
        """Lines that the node wants to be said here; whoever says them takes them out."""
        self.is_stopping = False
        """The node has said that it is about to end."""
        self._connection = Connection(_connected(path), takes_descriptors=True)
        self._tag = 0
        self._poll = select.poll()
        self._poll.register(self._connection.fileno(), select.POLLIN)
        self._others: deque[Frame] = deque()
        self._hello_failure: Gone | None = None
        _CLIENTS.add(self)
        try:
            check_node(path, credentials_of(self._connection.socket))
            self._connection.send(hello.frame())
        except Gone as error:  # it may have been refused before it could say anything
            self._hello_failure = error
        except OSError as error:
            self.close()
            raise NoNode(f"the node at {path} has just gone ({error.strerror})") from error
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def wait(self, timeout_s: float) -> Welcome:
        """Wait for the answer to the hello.

        Raises:
            Refused: the node does not want us, or we do not want it.
            Gone, BadFrame: it is no node, or it has just ended.
            NoNode: it did not answer in time.

        """
        end_s = time.monotonic() + timeout_s
        while self.welcome is None:
            if not self._wait(end_s):
                raise NoNode(f"the node at {self._path} did not answer a hello within {timeout_s:g} s")
            self.poll()
        return self.welcome

    def poll(self) -> list[Frame]:
        """Return the frames that have come and that `ask` does not wait for. Does not wait."""
        self._connection.flush()
        frames = [*self._others, *self._received()]
        self._others.clear()
        return frames

    def send(self, kind: int, body: bytes = b"") -> int:
        """Send a frame; return its tag, which the answer will have."""
        self._tag = (self._tag + 1) % TAGS
        try:
            self._connection.send(Frame(kind, body, self._tag))
        except Gone:
            with contextlib.suppress(NodeError):
                self._received()  # what it has said before it went
            if self.is_stopping:
                raise Gone("it was stopped") from None
            raise
        return self._tag

    def ask(self, kind: int, body: bytes = b"", *, timeout_s: float) -> Frame | None:
        """Send a frame and wait for its answer; None if that is late. A late answer comes out of `poll`."""
        end_s = time.monotonic() + timeout_s
        tag = self.send(kind, body)
        while self._wait(end_s):
            answer = None
            for frame in self._received():
                if frame.tag == tag:
                    answer = frame
                else:
                    self._others.append(frame)
            if len(self._others) > OTHERS_MAX:
                raise Gone(f"nobody looks at the {len(self._others)} frames that came unasked, or late")
            if answer is not None:
                return answer
        return None

    def wait_for_frames(self, timeout_s: float) -> bool:
        """Wait until something can be read, at most so long."""
        return self._wait(time.monotonic() + timeout_s)

    def has_hung_up(self) -> bool:
        """Whether the connection is over; what the node has sent before may still be there. Does not wait."""
        if self.fileno() < 0:
            return True
        end = select.poll()
        end.register(self.fileno(), select.POLLRDHUP)
        return bool(end.poll(0))

    def drained(self) -> None:
        """Say that we copy nothing any more. Also before the hello is answered."""
        self.send(Kind.DRAINED)

    def close(self) -> None:
        """Close the connection. What is mapped stays, until its owner closes it. May be called again."""
        self._others.clear()
        self._connection.close()

    def _wait(self, end_s: float) -> bool:
        """Wait until something can be read, and send meanwhile what could not be sent at once. False: it is late."""
        left_ms = (end_s - time.monotonic()) * 1000
        if left_ms <= 0:
            return False
        if not self._connection.unsent_bytes:
            return bool(self._poll.poll(left_ms))
        self._poll.modify(self.fileno(), select.POLLIN | select.POLLOUT)
        ready = bool(self._poll.poll(left_ms))
        self._poll.modify(self.fileno(), select.POLLIN)
        self._connection.flush()
        return ready

    def _received(self) -> list[Frame]:
        try:
            frames = self._connection.receive()
        except Gone as error:
            raise (self._hello_failure or error) from None
        if self.welcome is None and frames:
            self._be_welcomed(frames.pop(0))
        if all(frame.kind not in _ABOUT_NODE for frame in frames):
            return frames
        for frame in frames:
            if frame.kind == Kind.STOPPING:
                self.is_stopping = True
            elif frame.kind == Kind.NOTICE and len(self.notices) < NOTICES_MAX:
                self.notices.append(" ".join(frame.body.decode(errors="replace").split())[:NOTICE_CHARS_MAX])
        return [frame for frame in frames if frame.kind not in _ABOUT_NODE]

    def _be_welcomed(self, frame: Frame) -> None:
        mapped: list[MappedArena] = []
        try:
            welcome = read_welcome(frame)
            for descriptor, description in zip(frame.descriptors, welcome.arenas, strict=True):
                mapped.append(MappedArena(descriptor, description, follows=True))
        except BaseException:
            for arena in mapped:
                arena.close()
            raise
        finally:
            _close_all(frame.descriptors)
        self.welcome, self.arenas = welcome, tuple(mapped)
        self._connection.takes_descriptors = False  # there will be no more


def _connected(path: Path) -> socket.socket:
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NoNode(f"this process cannot open a socket for the node at {path} ({error.strerror})") from error
    sock.setblocking(False)
    try:
        sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        if error.errno in (errno.EACCES, errno.EPERM):
            what = "run as the user of the node, or start it with a --group of both"
            raise Refused(f"{path} is not for user {os.geteuid()}: {what}", for_good=True) from None
        if error.errno == errno.EAGAIN:
            raise NoNode(f"too many wait for the node at {path} to take their connections") from None
        why = error.strerror or str(error)
        if error.errno == errno.ENOENT and not path.parent.exists():
            why = f"there is no folder {path.parent}"
        raise NoNode(f"no node listens at {path} ({why})") from error
    return sock


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


_CLIENTS: weakref.WeakSet[Client] = weakref.WeakSet()


def _leave_behind() -> None:
    """In a child, close all connections: who holds one keeps a life open, and what it says counts as its parent's."""
    for client in _CLIENTS:
        client.close()


os.register_at_fork(after_in_child=_leave_behind)
