"""A worker's half of the way to a node: the memory of its part, in each life that its scheduler tells of."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvtide.copy import HostArena
from kvtide.core.messages import Pool
from kvtide.core.share import ALL, Share
from kvtide.node.client import Client
from kvtide.node.errors import NodeError, NoNode, Refused
from kvtide.node.hello import SLOWER, Hello, Welcome
from kvtide.node.link import HELLO_S, RETRY_S

JOIN_S = 0.02
"""So long a step may be held up when a life begins. An answer that takes longer is taken in a later one."""


class NodeMemory:
    """See `kvtide.copy.HostMemory`: what `LivesCopyEngine` copies to and from. For one rank.

    `hello` has the role of a worker, the engine, rank, part, and the NUMA node where that is known; which life it joins
    the scheduler says. `share` tells ranks apart that have the same part. `say` hears why there is no memory.
    """

    def __init__(self, path: Path, hello: Hello, say: Callable[[str], None], *, share: Share = ALL) -> None:
        self._path = path
        self._hello = replace(hello, worker=secrets.token_hex(8))
        self._share = share
        self._say = say
        self._said = self._said_far = ""
        self._pool: Pool | None = None
        """What is joined, or tried to."""
        self._client: Client | None = None
        self._try_s = float("-inf")
        """When to try again, or when to say that a hello is not answered."""

    def join(self, pool: Pool) -> HostArena | None:
        """See `HostMemory`. Its connection stays as long as the memory is used: its end would end the life."""
        if pool != self._pool:
            self._hang_up()
            self._pool, self._try_s = pool, float("-inf")
        try:
            return self._join(pool, time.monotonic())
        except NodeError as error:
            self._hang_up()
            for_good = isinstance(error, Refused) and error.for_good
            self._try_s = float("inf") if for_good else time.monotonic() + RETRY_S
            self._tell(str(error))
            return None

    def _join(self, pool: Pool, now_s: float) -> HostArena | None:
        if self._client is None:
            if now_s < self._try_s:
                return None
            self._client = Client(self._path, replace(self._hello, epoch=pool.epoch, owner=pool.owner))
            self._try_s = now_s + HELLO_S
            self._client.wait_for_frames(JOIN_S)
        self._client.poll()
        if self._client.welcome is None:
            if now_s >= self._try_s:  # and waits on: to leave would end the life for all ranks
                self._tell(f"it has not answered a hello for {HELLO_S:g} s")
            return None
        if not self._client.arenas:
            raise NoNode("it has sent no memory")
        self._said = ""
        self._tell_far(self._client.welcome)
        arena = self._client.arenas[0]
        arena.share = self._share
        return arena

    def is_gone(self) -> bool:
        """See `HostMemory`: the node has ended, or does not want us any more."""
        return self._client is not None and self._client.has_hung_up()

    def drained(self) -> None:
        """See `HostMemory`. If that is lost with its connection, the next hello says it."""
        self._hang_up(is_drained=True)
        self._pool = None

    def close(self) -> None:
        """See `HostMemory`."""
        self._hang_up()
        self._try_s = float("inf")

    def _hang_up(self, *, is_drained: bool = False) -> None:
        if self._client is not None:
            if is_drained or self._client.welcome is None:  # without an answer there is no memory to copy to
                with contextlib.suppress(NodeError):
                    self._client.drained()
            self._client.close()
        self._client = None

    def _tell_far(self, welcome: Welcome) -> None:
        """Say it, once, if this memory is not next to our GPU."""
        far = welcome.more.get("far")
        if isinstance(far, str) and far not in ("", self._said_far):
            self._said_far = far
            self._say(f"rank {self._hello.rank} has {far}, at the node at {self._path}: {SLOWER}")

    def _tell(self, why: str) -> None:
        if why != self._said:
            self._said = why
            self._say(f"rank {self._hello.rank} has no memory of the node at {self._path}: {why}")
