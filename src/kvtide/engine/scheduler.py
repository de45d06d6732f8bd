"""The scheduler: which tokens of which requests are computed in the next step."""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from typing import NamedTuple

from kvtide.core.match import Match
from kvtide.core.messages import Outcome
from kvtide.engine.block_pool import BlockPool
from kvtide.engine.block_tables import BlockTables
from kvtide.engine.config import EngineConfig
from kvtide.engine.offloading import Manager
from kvtide.engine.request import Request, State
from kvtide.engine.stats import EngineStats


class Work(NamedTuple):
    """Compute the next `num_tokens` tokens of a request."""

    request: Request
    num_tokens: int


class Scheduler:
    """Continuous batching, prefill in chunks, first come first served, preemption by recompute.

    Why nobody waits forever (F13): running requests are served in the order of admission, and one that finds no
    block takes those of the last admitted. So the first one always goes on, unless what it lacks is held by
    copies (pins, or requests that load), and copies end by themselves. A request that is alone finds room,
    because it was refused if it could ever need more than the pool.
    """

    def __init__(self, config: EngineConfig, pool: BlockPool, manager: Manager, stats: EngineStats) -> None:
        self._config = config
        self._pool = pool
        self._tables = BlockTables(config.groups, pool)
        self._manager = manager
        self._stats = stats
        self._waiting: deque[Request] = deque()
        self._loading: dict[str, Request] = {}
        self._running: list[Request] = []
        self._admissions = 0

    @property
    def idle(self) -> bool:
        """Whether there are no requests."""
        return not (self._waiting or self._loading or self._running)

    def add(self, request: Request) -> None:
        """Put a new request into the queue."""
        self._manager.add_request(request.id, [request.keys] * len(request.tables), request.tables)
        self._waiting.append(request)

    def schedule(self) -> list[Work]:
        """Decide what is computed in this step."""
        budget = self._config.step_tokens
        work: list[Work] = []
        everybody_served = True
        for request in tuple(self._running):
            if request.state is not State.RUNNING or not budget:
                continue  # preempted for the sake of an earlier one, or left for the next step
            num_tokens = min(request.remaining, budget)
            if self._make_room(request, request.computed + num_tokens):
                work.append(Work(request, num_tokens))
                budget -= num_tokens
            else:
                everybody_served = False
        for request in tuple(self._waiting) if everybody_served else ():
            if not budget or not self._has_seat():
                break
            match = self._match(request)
            if match.waits:
                continue  # for what is below host memory; the others need not (F14)
            if not self._admit(request, match, budget):
                break
            if request.state is State.RUNNING:
                work.append(Work(request, min(request.remaining, budget)))
                budget -= work[-1].num_tokens
        return work

    def slide(self) -> None:
        """Free what fell out of the windows. After the plan, which may still want to store it."""
        for request in self._running:
            self._tables.slide(request)

    def computed(self, work: Work) -> None:
        """Take note that tokens have been computed."""
        request, num_tokens = work
        prefill = max(0, min(request.prefill_end - request.computed, num_tokens))
        self._stats.prefill_tokens += prefill
        self._stats.decode_tokens += num_tokens - prefill
        request.computed += num_tokens
        self._tables.register(request)
        self._manager.advance(request.id, request.computed)

    def take(self, outcome: Outcome) -> None:
        """Let requests go on whose loads have ended. A failed load is computed instead (F8)."""
        for request_id in outcome.loaded:
            request = self._loading.pop(request_id, None)
            if request is not None:
                self._count_loaded(request)
                request.computed = request.resume_at
                self._tables.register(request)
                self._run(request)
        # Backwards: each goes to the front of the queue.
        for request_id in reversed(outcome.failed):
            request = self._loading.pop(request_id, None)
            if request is not None:
                self._stats.loads_failed += 1
                self._requeue(request)

    def finish(self, request: Request) -> None:
        """Remove a request, in whatever state it is. What copies still use of its blocks is pinned by the core."""
        self._manager.finish(request.id)
        if request.state is State.WAITING:
            self._waiting.remove(request)
        elif request.state is State.LOADING:
            del self._loading[request.id]
        else:
            self._running.remove(request)
        self._tables.release(request)
        request.state = State.FINISHED

    def restart(self) -> None:
        """Take all blocks away from all requests: what they hold is of no use any more."""
        for request in self._waiting:
            self._manager.preempt(request.id)
        held = sorted([*self._running, *self._loading.values()], key=_admission)
        self._running.clear()
        self._loading.clear()
        for request in reversed(held):
            self._requeue(request)

    def _has_seat(self) -> bool:
        return len(self._running) + len(self._loading) < self._config.max_running

    def _match(self, request: Request) -> Match:
        """Ask what the host has, and keep it."""
        match = self._manager.match(request.id, self._tables.device_hit(request), len(request.tokens))
        self._manager.reserve(match)
        return match

    def _admit(self, request: Request, match: Match, budget: int) -> bool:
        """Give a request its blocks; False if there are too few, and it stays where it is."""
        device_tokens = match.device_tokens
        resume_at = device_tokens + match.tokens
        to_compute = 0 if match.tokens else min(len(request.tokens) - device_tokens, budget)
        placed = self._tables.place(
            request,
            device_tokens=device_tokens,
            resume_at=resume_at,
            num_tokens=resume_at + to_compute,
            spare=len(self._running),  # one each, lest it is preempted as soon as the others go on
        )
        if not placed:
            self._manager.give_up(request.id)
            return False
        self._waiting.remove(request)
        self._admissions += 1
        request.admission = self._admissions
        request.prefill_end = len(request.tokens)
        request.computed, request.resume_at = device_tokens, resume_at
        self._stats.device_hit_tokens += device_tokens
        if not request.generated:
            request.device_tokens, request.loaded_tokens = device_tokens, 0
        if self._manager.admit(request.id, match.tokens):
            request.state = State.LOADING
            self._loading[request.id] = request
            request.load_began_s = time.perf_counter()
        else:
            self._run(request)
        return True

    def _count_loaded(self, request: Request) -> None:
        loaded_tokens = request.resume_at - request.computed
        self._stats.loaded_tokens += loaded_tokens
        self._manager.loaded(loaded_tokens, time.perf_counter() - request.load_began_s)
        if not request.generated:
            request.loaded_tokens = loaded_tokens

    def _run(self, request: Request) -> None:
        request.state = State.RUNNING
        insort(self._running, request, key=_admission)

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Find blocks for `num_tokens` tokens of a running request; False: not in this step."""
        while not self._tables.extend(request, num_tokens):
            self.slide()
            missing = self._tables.missing(request, num_tokens)
            if missing <= self._pool.num_free:
                continue
            if missing <= self._pool.num_free + self._pool.num_pinned:
                return False  # copies hold what is missing: wait rather than throw work away
            victim = self._running[-1]
            if victim is request and self._loading:
                return False  # requests that load hold it: they will run, and can be preempted then
            self._running.remove(victim)
            self._stats.preemptions += 1
            self._requeue(victim)
            if victim is request:
                return False
        return True

    def _requeue(self, request: Request) -> None:
        """Take all blocks away from a request and let it wait in front of the others."""
        self._manager.preempt(request.id)
        self._tables.release(request)
        request.state = State.WAITING
        self._waiting.appendleft(request)


def _admission(request: Request) -> int:
    return request.admission
