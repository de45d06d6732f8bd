"""Replay: the real core and the embedded engine's device pool, driven by a trace in virtual time.

What is real: matching, reserving, storing, evicting, pinning, allocating. What is a model: the time that prefill,
decoding and copies take (`cost`). Prefills run one after the other, first come first served; each request decodes at
a constant rate; loads and stores have a channel each. Blocks of generated tokens take room but have no hashes in a
trace, so that the next turn has to compute them: hits are a lower bound there.

Several servers take turns with the requests. Each has its own device and host memory, below that its own disk, and
below that one store together with the others, as far as they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtide.traces.record import TraceRequest
from kvtide.traces.replay_below import Below, BelowStack
from kvtide.traces.replay_config import ReplayConfig
from kvtide.traces.replay_result import ReplayResult
from kvtide.traces.replay_server import NEVER_S, Server

__all__ = ["Replay", "ReplayConfig"]


class Replay:
    """One run of one or more servers. Make it, `run` it once."""

    def __init__(self, config: ReplayConfig) -> None:
        self.result = ReplayResult(config.block_bytes, selective=config.admission != "all")
        self._servers = [Server(config, self.result, below) for below in self._make_stacks(config)]

    @staticmethod
    def _make_stacks(config: ReplayConfig) -> Sequence[BelowStack | None]:
        if not config.below:
            return [None] * config.servers
        shared = {model: Below(model, config.block_bytes) for model in config.below if model.shared}
        return [
            BelowStack([shared[model] if model.shared else Below(model, config.block_bytes) for model in config.below])
            for _ in range(config.servers)
        ]

    def run(self, requests: Iterable[TraceRequest]) -> ReplayResult:
        """Serve the whole trace and return what came of it."""
        now_s = 0.0
        for number, request in enumerate(requests):
            arrival_s = max(now_s, request.time_s)  # logs of several processes are not quite in order
            while (server := self._first()).due_s <= arrival_s:
                now_s = server.next()
            now_s = arrival_s
            self._servers[number % len(self._servers)].arrive(number, request, now_s)
        while (server := self._first()).due_s < NEVER_S:
            now_s = server.next()
        for server in self._servers:
            server.close()
        self.result.close(now_s)
        return self.result

    def _first(self) -> Server:
        """Return the server to which something happens next."""
        servers = self._servers
        return servers[0] if len(servers) == 1 else min(servers, key=lambda server: server.due_s)
