"""One life of a node, from its start to its orderly stop."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from kvtide import __version__
from kvtide.node.credentials import Access
from kvtide.node.hello import PROTOCOL
from kvtide.node.listening import Listening
from kvtide.node.loop import Loop
from kvtide.node.metrics import Metrics
from kvtide.node.owners import WORKER
from kvtide.node.peers import limits_of_process
from kvtide.node.server import Server
from kvtide.node.settings import NodeSettings
from kvtide.node.spaces import Spaces
from kvtide.node.systemd import notify
from kvtide.node.tiers.last_sinks import LastSinks
from kvtide.node.tiers.node_tiers import NodeTiers
from kvtide.units import how_many, size_text

STOP_S = 10.0
"""How long engines have to close their connections when the node is stopped."""
TICK_S = 0.5


class Node:
    """Serves until `stop`, which signals call. `say` takes lines for the operator.

    Raises:
        ConfigError: the socket or the port cannot be had.
        KVTideError: it may open too few files.

    """

    def __init__(self, settings: NodeSettings, say: Callable[[str], None]) -> None:
        self.epoch = secrets.token_hex(8)
        self._settings = settings
        self._say = say
        self._since_s = time.monotonic()
        self._stop_s: float | None = None
        limits = limits_of_process()
        self._listening = Listening(settings.socket, settings.group)
        self._loop = Loop(TICK_S)
        try:
            self._tiers = NodeTiers(settings.tiers, self._loop, say)
        except BaseException:
            self._listening.close()
            self._loop.close()
            raise
        self._last_sinks = LastSinks(self._tiers, say)
        self._spaces = Spaces(settings.memory_bytes, say, settings.policy, settings.shares, self._tiers)
        access = Access(os.geteuid(), settings.group)
        self._server = Server(
            self._loop,
            self._listening,
            self._spaces,
            epoch=self.epoch,
            access=access,
            limits=limits,
            say=say,
            status=self.status,
        )
        self._spaces.send = self._server.send
        self._metrics: Metrics | None = None
        try:
            if settings.metrics_port is not None:
                self._metrics = Metrics(settings.metrics_port)
        except BaseException:
            self._close()
            raise

    def run(self) -> None:
        """Serve, in this thread."""
        settings = self._settings
        memory = f"{size_text(settings.memory_bytes)} for all engines of this machine"
        if settings.tiers:
            memory += f", below it {', '.join(tier.shown for tier in settings.tiers)}"
        self._say(
            f"node {self.epoch} listens at {settings.socket}: {memory} (kvtide {__version__}, protocol {PROTOCOL})"
        )
        if self._metrics is not None:
            self._say(f"metrics are at {self._metrics.url}")
        notify("READY=1", f"STATUS={memory}")
        try:
            self._tick(time.monotonic())
            self._loop.run(self._tick)
        finally:
            self._close()
            self._say(f"node {self.epoch} has stopped")

    def stop(self) -> None:
        """Stop in an orderly way: engines are told, and have some time to close. A second time: at once."""
        self._loop.post(self._stop)

    def stop_on_signals(self) -> None:
        """Stop when it is told to, or its terminal is closed. What is ignored (nohup) stays so. In the main thread."""

        def handle(_: int, __: FrameType | None) -> None:
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handle)

    def status(self) -> dict[str, Any]:
        """Return how it is, as JSON. In the thread that serves."""
        engines = [
            {
                "owner": owner.number,
                "engine": owner.engine,
                "namespace": owner.namespace,
                "state": owner.state.value,
                **self._spaces.held(owner),
                "processes": [
                    {
                        "role": member.role,
                        "rank": member.rank,
                        "pid": member.pid,
                        "connected": member.is_connected,
                        "quiet": member.is_quiet,
                        "watched": member.is_watched,
                        "far": owner.far.get(member.rank, "") if member.role == WORKER else "",
                    }
                    for member in owner.members.values()
                ],
            }
            for owner in self._server.lives.owners
        ]
        refused = self._server.last_refused
        return {
            "epoch": self.epoch,
            "kvtide": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "up_s": round(time.monotonic() - self._since_s, 1),
            "socket": str(self._settings.socket),
            "policy": self._settings.policy,
            "memory_bytes": self._settings.memory_bytes,
            "connections": self._server.connections,
            "connections_max": self._server.limits.connections,
            "refused": self._server.refused,
            "last_refused": None if refused is None else refused[0],
            "last_refused_s": None if refused is None else round(time.monotonic() - refused[1], 1),
            "closed": self._server.closed,
            "threads": threading.active_count(),
            "engines": engines,
            **self._spaces.status(),
        }

    def _stop(self) -> None:
        if self._stop_s is not None:
            self._loop.stop()
            return
        self._stop_s = time.monotonic() + STOP_S
        notify("STOPPING=1")
        self._server.stop()
        left = self._server.connections
        waits = f": {how_many(left, 'connection')} may take {STOP_S:g} s to close; stop again to end at once"
        self._say(f"node {self.epoch} is stopping{waits if left else ''}")
        self._stop_if_done(time.monotonic())

    def _tick(self, now_s: float) -> None:
        self._server.tick(now_s)
        self._stop_if_done(now_s)
        if self._metrics is not None:
            self._metrics.publish(self.status())

    def _stop_if_done(self, now_s: float) -> None:
        if self._stop_s is None or (self._server.connections and now_s < self._stop_s):
            return
        if self._last_sinks.are_over(now_s):
            self._loop.stop()

    def _close(self) -> None:
        self._server.close()
        if self._metrics is not None:
            self._metrics.close()
        self._tiers.close()
        self._spaces.close()
        self._loop.close()
