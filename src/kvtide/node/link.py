"""A process's tie to a node that may not be there yet, may go, and may come back (I13). It never waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from kvtide.node.client import Client
from kvtide.node.errors import NodeError, NoNode, Refused
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello, Welcome

RETRY_S = 1.0
"""Between tries to connect. One that fails takes microseconds."""
RETRY_REFUSED_S = 60.0
"""After a refusal for good: somebody has to change something first."""
HELLO_S = 5.0
"""For the node to answer a hello."""


class Link:
    """Attached to a node whenever there is one: `client` is there then, and None otherwise.

    `poll` is called now and then, as once per step. `say` hears what has changed, once; `warn`, why there is no node.
    """

    def __init__(
        self, path: Path, hello: Hello, say: Callable[[str], None], warn: Callable[[str], None] | None = None
    ) -> None:
        self._path = path
        self._hello = hello
        self._say = say
        self._warn = warn or say
        self._said = ""
        self._greeting: Client | None = None
        self._try_s = float("-inf")
        """When to try again, or until when to wait for the answer to a hello."""
        self.client: Client | None = None

    def poll(self, now_s: float) -> list[Frame]:
        """Connect if there is a node, notice if it is gone; return the frames that came unasked, or late."""
        try:
            if self.client is not None:
                return self._received(self.client)
            if self._greeting is not None:
                self._welcomed(self._greeting, now_s)
            elif now_s >= self._try_s:
                self._try_s = now_s + HELLO_S
                self._greeting = Client(self._path, self._hello)
        except NodeError as error:
            self.lost(error, now_s)
        return []

    @property
    def is_greeting(self) -> bool:
        """Whether somebody listens, and has not answered yet."""
        return self._greeting is not None

    def wait(self, seconds: float) -> None:
        """Wait for the answer to a hello, at most so long."""
        if self._greeting is not None:
            self._greeting.wait_for_frames(seconds)

    def lost(self, error: NodeError, now_s: float) -> None:
        """The node is of no use any more, as whoever talks to it has found out. It is tried again later."""
        self._close()
        for_good = isinstance(error, Refused) and error.for_good
        self._try_s = now_s + (RETRY_REFUSED_S if for_good else RETRY_S)
        self._tell(f"serving without the node at {self._path}: {error}", self._warn)

    def close(self) -> None:
        """Let go. What is mapped stays, until its owner closes it."""
        self._close()
        self._try_s = float("inf")

    def _received(self, client: Client) -> list[Frame]:
        frames = client.poll()
        for notice in client.notices:
            self._say(f"the node at {self._path} says: {notice}")
        client.notices.clear()
        if client.is_stopping:
            raise NoNode("it is being stopped")
        return frames

    def _welcomed(self, client: Client, now_s: float) -> None:
        client.poll()
        if client.welcome is not None:
            self.client, self._greeting = client, None
            line = f"attached to the node at {self._path} ({client.welcome.epoch}){_notes(client.welcome)}"
            self._tell(line, self._say)
        elif now_s >= self._try_s:
            raise NoNode(f"it did not answer a hello within {HELLO_S:g} s")

    def _tell(self, line: str, to: Callable[[str], None]) -> None:
        if line != self._said:
            self._said = line
            to(line)

    def _close(self) -> None:
        for client in (self.client, self._greeting):
            if client is not None:
                with contextlib.suppress(NodeError):
                    client.close()
        self.client = self._greeting = None


def _notes(welcome: Welcome) -> str:
    """Return what the node has to say about our place there."""
    unlike, room = (welcome.more.get(name) for name in ("unlike", "room"))
    shares = f"; this engine shares nothing with the others there: {unlike}" if unlike else ""
    return f"{shares}; there is {room}" if room else shares
