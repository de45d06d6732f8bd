"""One server of a replay: an engine with its device pool and the real core, to which things happen in virtual time."""

from __future__ import annotations

import heapq
from collections import deque
from enum import IntEnum, auto

from kvtide.core import Copy, Errand, Fetch, OffloadManager, Report
from kvtide.engine.block_pool import BlockPool
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay_below import BelowStack
from kvtide.traces.replay_config import ReplayConfig
from kvtide.traces.replay_request import ReplayRequest
from kvtide.traces.replay_result import ReplayResult

RANK = 0
NEVER_S = float("inf")


class Happening(IntEnum):
    """What can be due."""

    COPIED = auto()
    COMPUTED = auto()
    DECODED = auto()
    ANSWERED = auto()
    LATE = auto()


class Server:
    """An engine with its memory."""

    def __init__(self, config: ReplayConfig, result: ReplayResult, below: BelowStack | None) -> None:
        self._config = config
        self._below = below
        self._cost = config.cost
        self._device = BlockPool(config.device_blocks)
        self._manager = OffloadManager(config.offload(), self._device)
        self._device.on_evicted = self._manager.evicted
        self._requests: dict[str, ReplayRequest] = {}
        self._waiting: deque[ReplayRequest] = deque()
        self._searching: dict[str, ReplayRequest] = {}
        """Requests that wait for what is below, in the order of their arrival."""
        self._due: list[tuple[float, int, Happening, str | int | tuple[Errand, float]]] = []
        self._happenings = 0
        self._compute_free_s = self._load_free_s = self._store_free_s = 0.0
        self._blocked_by_pins_since_s: float | None = None
        self._result = result

    @property
    def due_s(self) -> float:
        """When something happens next."""
        return self._due[0][0] if self._due else NEVER_S

    def next(self) -> float:
        """Let what is due next happen; return when that is."""
        now_s, _, what, subject = heapq.heappop(self._due)
        if isinstance(subject, tuple):
            assert self._below is not None
            errand, begun_s = subject
            self._step(now_s, Report(RANK, answers=(self._below.end(errand, now_s - begun_s),)))
        elif isinstance(subject, int):
            self._step(now_s, Report(RANK, (subject,)) if what is Happening.COPIED else Report(RANK, late=(subject,)))
        else:
            request = self._requests[subject]
            if what is Happening.COMPUTED:
                self._computed(request, now_s)
            else:
                self._finish(request)
            self._step(now_s)
        return now_s

    def close(self) -> None:
        """Take the last numbers."""
        assert not self._requests, "nothing happens any more, and requests wait"
        self._result.close_server(self._manager.metrics)

    def arrive(self, number: int, request: TraceRequest, now_s: float) -> None:
        """Take a request."""
        arrived = ReplayRequest.of(f"{number}", request, self._config.block_tokens, now_s)
        self._result.requests += 1
        if arrived.blocks_needed > self._config.device_blocks:
            self._result.too_large += 1
            return
        self._requests[arrived.id] = arrived
        self._manager.add_request(arrived.id, [arrived.keys], [arrived.blocks])
        self._waiting.append(arrived)
        self._step(now_s)

    def _step(self, now_s: float, *reports: Report) -> None:
        """Take reports, admit who waits, start copies."""
        outcome = self._manager.report(*reports)
        for request_id in outcome.loaded:
            request = self._requests[request_id]
            request.register(self._device, request.resume_at // self._config.block_tokens)
            self._compute(request, now_s)
        self._plan(now_s)
        while self._stop_searching():
            self._plan(now_s)

    def _stop_searching(self) -> bool:
        """Let those whose search is over be first in the queue; return whether there are any."""
        found = [request for request in self._searching.values() if not self._manager.waits(request.id)]
        for request in reversed(found):
            del self._searching[request.id]
            self._waiting.appendleft(request)
        return bool(found)

    def _plan(self, now_s: float) -> None:
        """Admit who waits, start copies and errands."""
        while self._waiting and self._admit(self._waiting[0], now_s):
            self._waiting.popleft()
        plan = self._manager.plan()
        for copy in plan.loads:
            self._load_free_s = self._copy(copy, max(now_s, self._load_free_s), self._cost.load_bytes_per_s)
        for copy in plan.stores:
            self._store_free_s = self._copy(copy, max(now_s, self._store_free_s), self._cost.store_bytes_per_s)
        for errand in plan.errands:
            self._run_errand(errand, now_s)
        self._result.copied(plan)

    def _run_errand(self, errand: Errand, now_s: float) -> None:
        assert self._below is not None
        self._happens(self._below.begin(errand, now_s), Happening.ANSWERED, (errand, now_s))
        late_s = self._below.late_s(errand, now_s) if isinstance(errand, Fetch) else None
        if late_s is not None:
            self._happens(late_s, Happening.LATE, errand.id)

    def _admit(self, request: ReplayRequest, now_s: float) -> bool:
        """Give a request its device blocks, and what is cached, or let it search; False if there are too few blocks."""
        device, tokens = self._device, request.prompt_tokens
        there = request.leading_blocks(device) if self._config.prefix_cache else []
        device_tokens = len(there) * self._config.block_tokens
        match = self._manager.match(request.id, device_tokens, tokens)
        self._manager.reserve(match)
        if match.waits:
            request.search(device_tokens + match.tokens)
            self._searching[request.id] = request
            return True
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
            self._result.lost_to_pins_s += now_s - self._blocked_by_pins_since_s
            self._blocked_by_pins_since_s = None
        request.admit(there + fresh, device_tokens, device_tokens + match.tokens, now_s)
        self._result.admitted(request, match, self._below)
        if not self._manager.admit(request.id, match.tokens):
            self._compute(request, now_s)
        return True

    def _compute(self, request: ReplayRequest, now_s: float) -> None:
        """Queue the prefill of what was found nowhere."""
        begin_s = max(now_s, self._compute_free_s)
        self._result.lost_to_compute_s += begin_s - now_s
        tokens = request.prompt_tokens - request.resume_at
        compute_s = tokens / self._cost.prefill_tokens_per_s
        self._compute_free_s = begin_s + compute_s
        self._manager.computed(tokens, compute_s)
        self._happens(self._compute_free_s + self._cost.overhead_s, Happening.COMPUTED, request.id)

    def _computed(self, request: ReplayRequest, now_s: float) -> None:
        request.register(self._device, len(request.keys))
        if self._config.host_bytes:  # without host memory there is nothing to store into
            self._manager.advance(request.id, request.prompt_tokens)
        self._result.first_token(now_s - request.arrival_s)
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

    def _happens(self, when_s: float, what: Happening, subject: str | int | tuple[Errand, float]) -> None:
        self._happenings += 1
        heapq.heappush(self._due, (when_s, self._happenings, what, subject))
