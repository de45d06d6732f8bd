"""The way from an engine's scheduler to the index at a node (`core/index/link.py`)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvtide.core.index.calls import Call, Reply
from kvtide.core.messages import Pool
from kvtide.node.client import Client
from kvtide.node.codec import call_frame, read_reply
from kvtide.node.errors import NodeError, NoNode
from kvtide.node.frames import BODY_BYTES_MAX
from kvtide.node.hello import Hello
from kvtide.node.link import Link

ATTACH_S = 1.0
"""So long an engine waits at its start for a node that listens, so that its first request finds what is there."""


class IndexLink:
    """Each connection is a life. None of its methods raises, or waits longer than it is told to.

    `say` and `warn` are those of `Link`.
    """

    def __init__(
        self, path: Path, hello: Hello, say: Callable[[str], None], warn: Callable[[str], None] | None = None
    ) -> None:
        self._path = path
        self._hello = hello
        self._say = say
        self._warn = warn
        self._tie = Link(path, hello, say, warn)
        self._client: Client | None = None
        self._lives = 0

    def attach(self, timeout_s: float | None = None) -> bool:
        """Wait for the first life, if somebody listens: without a node not at all. Returns whether it has begun.

        At most `timeout_s`, or ATTACH_S.
        """
        end_s = time.monotonic() + (ATTACH_S if timeout_s is None else timeout_s)
        self.receive()
        while self._tie.is_greeting and (left_s := end_s - time.monotonic()) > 0:
            self._tie.wait(left_s)
            self.receive()
        return self._client is not None

    @property
    def life(self) -> int | None:
        """See `core.index.link.Link`."""
        return self._lives if self._client is not None else None

    @property
    def pool(self) -> Pool | None:
        """See `core.index.link.Link`."""
        if self._client is None or self._client.welcome is None:
            return None
        return Pool(self._lives, self._client.welcome.epoch, self._client.welcome.owner)

    @property
    def slots(self) -> int:
        """See `core.index.link.Link`."""
        welcome = self._client.welcome if self._client is not None else None
        slots = 0 if welcome is None else welcome.more.get("slots")
        return slots if isinstance(slots, int) else 0

    def send(self, call: Call) -> None:
        """See `core.index.link.Link`."""
        if self._client is not None:
            try:
                frame = call_frame(call)
                if len(frame.body) > BODY_BYTES_MAX:
                    raise NoNode(f"a call of {len(frame.body)} bytes, and {BODY_BYTES_MAX} are the most")
                self._client.send(frame.kind, frame.body)
            except NodeError as error:
                self._lost(error)

    def flush(self) -> None:
        """See `core.index.link.Link`. What could be sent at once has been."""

    def receive(self) -> Sequence[Reply]:
        """See `core.index.link.Link`. Connects, too, when there is a node."""
        before = self._client
        try:
            replies = [read_reply(frame) for frame in self._tie.poll(time.monotonic())]
        except NodeError as error:
            self._lost(error)
            return []
        self._client = self._tie.client
        if self._client is not None and self._client is not before:
            self._lives += 1
        return replies if self._client is before else []

    def wait(self, seconds: float) -> float:
        """See `core.index.link.Link`."""
        if self._client is None:
            return 0.0
        end_s = time.monotonic() + seconds
        self._client.wait_for_frames(seconds)
        return end_s - time.monotonic()

    def leave(self) -> None:
        """See `core.index.link.Link`."""
        self._tie.close()
        self._client = None
        private = {**self._hello.namespace, "private": secrets.token_hex(8)}
        self._tie = Link(self._path, replace(self._hello, namespace=private), self._say, self._warn)

    def hang_up(self) -> None:
        """See `core.index.link.Link`."""
        if self._client is not None:
            self._lost(NoNode("it does not answer"))

    def drained(self, life: int) -> None:
        """See `core.index.link.Link`. The workers, who have the memory, tell the node themselves."""

    def close(self) -> None:
        """Let go of the node."""
        self._tie.close()
        self._client = None

    def _lost(self, error: NodeError) -> None:
        self._tie.lost(error, time.monotonic())
        self._client = None
