"""Replay: the real core and the embedded engine's device pool, driven by a trace in virtual time.

What is real: matching, reserving, storing, evicting, pinning, allocating. What is a model: the time that prefill,
decoding and copies take (`cost`). Prefills run one after the other, first come first served; each request decodes at
a constant rate; loads and stores have a channel each. Blocks of generated tokens take room but have no hashes in a
trace, so that the next turn has to compute them: hits are a lower bound there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, auto

from kvtide.core import Copy, FullAttention, Geometry, OffloadConfig, OffloadManager, Report
from kvtide.engine.block_pool import BlockPool
from kvtide.traces.cost import CostModel
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay_request import ReplayRequest
from kvtide.traces.replay_result import ReplayResult

RANK = 0
OnRequest = Callable[[int], None]
"""Told how many requests have been taken from the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What serves the trace."""

    block_tokens: int
    bytes_per_token: int
    device_blocks: int
    host_bytes: int
    policy: str
    mode: str
    cost: CostModel

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_tokens * self.bytes_per_token

    def offload(self) -> OffloadConfig:
        """Return the configuration of the core."""
        geometry = Geometry(
            groups=(FullAttention(self.block_tokens),), block_bytes=self.block_bytes, device_blocks=self.device_blocks
        )
        return OffloadConfig.build(geometry, {"host": self.host_bytes, "policy": self.policy, "mode": self.mode})


class Happening(IntEnum):
    """What can be due."""

    COPIED = auto()
    COMPUTED = auto()
    DECODED = auto()


class Replay:
    """One run. Make it, `run` it once."""

    def __init__(self, config: ReplayConfig) -> None:
        self._config = config
        self._cost = config.cost
        self._device = BlockPool(config.device_blocks)
        self._manager = OffloadManager(config.offload(), self._device)
        self._device.on_evicted = self._manager.evicted
        self._requests: dict[str, ReplayRequest] = {}
        self._waiting: deque[ReplayRequest] = deque()
        self._due: list[tuple[float, int, Happening, str | int]] = []
        self._happenings = 0
        self._compute_free_s = self._load_free_s = self._store_free_s = 0.0
        self._blocked_by_pins_since_s: float | None = None
        self.result = ReplayResult(config.block_bytes)

    def run(self, requests: Iterable[TraceRequest], on_request: OnRequest | None = None) -> ReplayResult:
        """Serve the whole trace and return what came of it."""
        now_s = 0.0
        for number, request in enumerate(requests):
            arrival_s = max(now_s, request.time_s)  # logs of several processes are not quite in order
            while self._due and self._due[0][0] <= arrival_s:
                now_s = self._next()
            now_s = arrival_s
            self._arrive(number, request, now_s)
            self._step(now_s)
            if on_request is not None:
                on_request(number + 1)
        while self._due:
            now_s = self._next()
        self.result.close(now_s, self._manager.metrics)
        return self.result

    def _next(self) -> float:
        """Let what is due next happen; return when that is."""
        now_s, _, what, subject = heapq.heappop(self._due)
        if what is Happening.COPIED:
            assert isinstance(subject, int)
            self._step(now_s, Report(RANK, (subject,)))
            return now_s
        assert isinstance(subject, str)
        request = self._requests[subject]
        if what is Happening.COMPUTED:
            self._computed(request, now_s)
        else:
            self._finish(request)
        self._step(now_s)
        return now_s

    def _arrive(self, number: int, request: TraceRequest, now_s: float) -> None:
        arrived = ReplayRequest.of(f"{number}", request, self._config.block_tokens, now_s)
        self.result.arrived(request)
        if arrived.blocks_needed > self._config.device_blocks:
            self.result.too_large += 1
            return
        self._requests[arrived.id] = arrived
        self._manager.add_request(arrived.id, [arrived.keys], [arrived.blocks])
        self._waiting.append(arrived)

    def _step(self, now_s: float, *reports: Report) -> None:
        """Take reports, admit who waits, start copies."""
        outcome = self._manager.report(*reports)
        for request_id in outcome.loaded:
            request = self._requests[request_id]
            request.register(self._device, request.resume_at // self._config.block_tokens)
            self._compute(request, now_s)
        while self._waiting and self._admit(self._waiting[0], now_s):
            self._waiting.popleft()
        plan = self._manager.plan()
        for copy in plan.loads:
            self._load_free_s = self._copy(copy, max(now_s, self._load_free_s), self._cost.load_bytes_per_s)
        for copy in plan.stores:
            self._store_free_s = self._copy(copy, max(now_s, self._store_free_s), self._cost.store_bytes_per_s)
        self.result.copied(plan)

    def _admit(self, request: ReplayRequest, now_s: float) -> bool:
        """Give a request its device blocks, and what is cached; False if there are too few blocks."""
        device, tokens = self._device, request.prompt_tokens
        there = request.leading_blocks(device)
        device_tokens = len(there) * self._config.block_tokens
        match = self._manager.match(request.id, device_tokens, tokens)
        self._manager.reserve(match)
        device.take(there)
        fresh = device.allocate(request.blocks_needed - len(there))
        if fresh is None:
            missing = request.blocks_needed - len(there) - device.num_free
            device.free(there)
            self._manager.give_up(request.id)
            if self._blocked_by_pins_since_s is None and missing <= device.num_pinned:
                self._blocked_by_pins_since_s = now_s
            return False
        if self._blocked_by_pins_since_s is not None:
            self.result.lost_to_pins_s += now_s - self._blocked_by_pins_since_s
            self._blocked_by_pins_since_s = None
        request.admit(there + fresh, device_tokens, device_tokens + match.tokens, now_s)
        self.result.admitted(request, match)
        if not self._manager.admit(request.id, match.tokens):
            self._compute(request, now_s)
        return True

    def _compute(self, request: ReplayRequest, now_s: float) -> None:
        """Queue the prefill of what was found nowhere."""
        begin_s = max(now_s, self._compute_free_s)
        self.result.lost_to_compute_s += begin_s - now_s
        tokens = request.prompt_tokens - request.resume_at
        self._compute_free_s = begin_s + tokens / self._cost.prefill_tokens_per_s
        self._happens(self._compute_free_s + self._cost.overhead_s, Happening.COMPUTED, request.id)

    def _computed(self, request: ReplayRequest, now_s: float) -> None:
        request.register(self._device, len(request.keys))
        self._manager.advance(request.id, request.prompt_tokens)
        self.result.first_token(now_s - request.arrival_s)
        decode_s = request.output_tokens * self._cost.decode_s_per_token
        self._happens(now_s + decode_s, Happening.DECODED, request.id)

    def _finish(self, request: ReplayRequest) -> None:
        self._manager.finish(request.id)
        self._device.free(request.blocks)
        del self._requests[request.id]

    def _copy(self, copy: Copy, begin_s: float, bytes_per_s: float) -> float:
        """Let a copy end in time; return when."""
        end_s = begin_s + len(copy.slots) * self._config.block_bytes / bytes_per_s
        self._happens(end_s, Happening.COPIED, copy.id)
        return end_s

    def _happens(self, when_s: float, what: Happening, subject: str | int) -> None:
        self._happenings += 1
        heapq.heappush(self._due, (when_s, self._happenings, what, subject))
