"""The façade: events of the engine and reports of workers in, plans and outcomes out."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.events import CacheEvent, EventStream
from kvtide.core.groups import Key
from kvtide.core.index.index import Index
from kvtide.core.index.local import LocalIndex
from kvtide.core.ledger import Entry, Ledger, LoadEntry, StoreEntry
from kvtide.core.loading.loads import Loads
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.core.metrics import Gauges, Metrics
from kvtide.core.ready_slots import ReadySlots
from kvtide.core.requests import Request, RequestEvent, State
from kvtide.core.storing.eager import EagerPlanner
from kvtide.core.storing.lazy import LazyPlanner
from kvtide.core.storing.planner import StorePlanner
from kvtide.core.storing.second_use import Selection
from kvtide.core.storing.stores import Stores
from kvtide.errors import ProtocolError


class OffloadManager:
    """Decides what is stored, loaded and evicted. No I/O, no threads, no clock.

    An engine reports what happens to its requests and asks for one plan per step:

        add_request → match → reserve → admit → advance … advance → finish
                        ↑        └ give_up       └ preempt (back to match)

        every step:  plan() → workers copy → report(what the workers say)

    While a request `waits` for what is below host memory it is matched again step after step. An engine may let a
    request go on before the last bytes of its load (`arrived`), say what left the device (`evicted`), what computing
    and loading cost (`computed`, `loaded`) and how time goes by (`passed`). `reset` forgets everything.
    """

    def __init__(
        self, config: OffloadConfig, device: DevicePool, *, slots_ready: int | None = None, index: Index | None = None
    ) -> None:
        """`slots_ready` host slots can be used at once (all); reports say when there are more.

        `index`: where host blocks are kept, if not in this process.
        """
        self.config = config
        self.metrics = Metrics()
        geometry = config.geometry
        self._events = EventStream(config.events, self.metrics)
        self._ledger = Ledger(geometry.ranks, self.metrics)
        self._index: Index = (
            LocalIndex(config, self._ledger, self._events, self.metrics, slots_ready) if index is None else index
        )
        self._ready = ReadySlots(geometry.ranks, self._index.fill().slots)
        self._stores = Stores(config, device, self._index, ledger=self._ledger, metrics=self.metrics)
        self._loads = Loads(config, device, self._index, ledger=self._ledger, metrics=self.metrics)
        self._planner = self._make_planner(device)
        self._requests: dict[str, Request] = {}
        self._step = 0

    def _make_planner(self, device: DevicePool) -> StorePlanner:
        selection = Selection(self.config, self._index)
        if self.config.mode == "eager":
            return EagerPlanner(self.config.geometry.groups, selection, self._stores)
        return LazyPlanner(self.config, device, self._index, selection, self._stores)

    # ------------------------------------------------------------------ requests

    def add_request(self, request_id: str, keys: Sequence[Sequence[Key]], blocks: Sequence[Sequence[int]]) -> None:
        """Make a request known.

        `keys[g]` and `blocks[g]` are live: the engine's own lists for group `g`, which kvtide reads inside its
        calls and never changes. `keys[g]` grows as tokens become known (full blocks only); `blocks[g]` is the
        block table, with NULL_BLOCK where a block is not needed any more.
        """
        groups = len(self.config.geometry.groups)
        if request_id in self._requests:
            raise ProtocolError(f"request {request_id!r} is known already")
        if len(keys) != groups or len(blocks) != groups:
            raise ProtocolError(f"request {request_id!r}: keys and blocks are needed for each of {groups} groups")
        self._requests[request_id] = Request(request_id, keys, blocks)
        self.metrics.requests += 1

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> Match:
        """Find what the host has beyond `device_tokens` for a request of `num_tokens`. Changes nothing.

        `tokens` of the result is the offer. One token is always left to compute. If it says that the request
        `waits`, more may be below host memory: reserve, and match again in each later step until it does not.
        """
        return self._loads.match(self._request(request_id), device_tokens, num_tokens)

    def reserve(self, match: Match) -> None:
        """Keep what `match` found until `admit`, `give_up`, `preempt`, `finish` or the next `reserve` (F11).

        To be called right after `match`, before anything else, also when nothing was found: the reasons why are
        counted when the request is admitted.
        """
        request = self._request(match.request_id)
        request.handle(RequestEvent.RESERVE)
        self._loads.reserve(request, match)

    def give_up(self, request_id: str) -> None:
        """Drop the reservation: the engine could not place the request now."""
        request = self._request(request_id)
        request.handle(RequestEvent.GIVE_UP)
        self._loads.release(request)

    def waits(self, request_id: str) -> bool:
        """Whether a request waits for what is below host memory, so that matching it again is of no use yet."""
        search = self._request(request_id).search
        return search is not None and not search.over

    def admit(self, request_id: str, accepted_tokens: int) -> bool:
        """Tell that the engine has allocated blocks and takes `accepted_tokens` of the offer: all, fewer, or 0.

        Returns whether a load is under way: then the request must not run until `report` names it.
        """
        return self._loads.admit(self._request(request_id), accepted_tokens)

    def arrived(self, request_id: str) -> bool:
        """Tell that a request's load cannot fail any more on any rank: compute will wait for its last bytes.

        To be called before its reports. The request goes on; the pins stay until the reports. Returns whether it has
        its tokens. If not, because a reset came between, they have to be computed.
        """
        request = self._request(request_id)
        load = self._ledger.get(request.load_id) if request.load_id is not None else None
        if not isinstance(load, LoadEntry):
            raise ProtocolError(f"request {request_id!r} has no load under way")
        return self._loads.arrive(load)

    def advance(self, request_id: str, computed_tokens: int) -> None:
        """Tell that the KV of the first `computed_tokens` tokens has really been computed (no placeholders)."""
        request = self._request(request_id)
        request.handle(RequestEvent.ADVANCE)
        before, request.computed_tokens = request.computed_tokens, computed_tokens
        if computed_tokens > request.furthest_tokens:
            request.furthest_tokens, request.got_further = computed_tokens, True
            self._stores.way.got_further()
        self._planner.advanced(request, before)

    def preempt(self, request_id: str) -> None:
        """Tell that the engine takes the request's blocks away; it will be matched again later.

        Also after a failed load, when the engine starts the request again; that does not count as a preemption.

        What was computed is stored from wherever the device still has it, so this may come after the blocks
        were freed, as long as they were not given to anyone else yet.
        """
        request = self._request(request_id)
        request.handle(RequestEvent.PREEMPT)
        if not request.load_failed or request.computed_tokens:
            self.metrics.preemptions += 1
            in_vain = request.furthest_tokens > 0 and not request.got_further
            self._stores.way.preempted(in_vain=in_vain, pins=self._stores.pins)
        self._planner.preempted(request)
        self._index.drop(request)
        self._loads.release(request)
        request.load_id = None
        request.computed_tokens = 0
        request.got_further = False
        request.stale = False

    def finish(self, request_id: str) -> None:
        """Tell that the request is over (done or aborted, in whatever state). Call before its blocks are freed."""
        request = self._request(request_id)
        self._stores.way.finished()
        self._planner.finished(request)
        self._index.drop(request)
        self._loads.release(request)
        request.load_id = None
        del self._requests[request_id]

    def evicted(self, group: int, key: Key) -> None:
        """Tell that the device holds a key no longer: its block was given to someone else.

        Optional. Lazy mode then counts what it was too late to store.
        """
        self._planner.evicted(group, key)

    # ------------------------------------------------------------------ steps

    def plan(self, *, idle: bool = False) -> Plan:
        """Return this step's plan. `idle`: nothing to compute, so workers may wait for the oldest transfer."""
        self._step += 1
        for chain in self._index.receive():
            self._stores.take_over(chain, lost=False)
        self._stores.let_go()
        loading = self._loads.take_planned()
        self._stores.way.step_ends()
        self._stores.retry()
        self._planner.plan(sum(len(load.blocks) for load in loading))
        loads = tuple(load.as_copy() for load in loading)
        stores = tuple(store.as_copy() for store in self._stores.take_planned())
        errands = self._index.plan()
        oldest = next((transfer.id for transfer in self._ledger), None) if idle else None
        ask = tuple(transfer.id for transfer in self._ledger.overdue)
        return Plan(self._step, loads, stores, () if oldest is None else (oldest,), errands, ask, self._index.pool)

    def report(self, *reports: Report) -> Outcome:
        """Take the workers' reports; return the requests whose loads are complete or failed.

        To be called every step, also without reports: some loads are settled without any worker's help.
        """
        settled: list[Entry] = list(self._loads.take_settled_at_once())
        for report in reports:
            settled += self._ledger.settle(report)
            ready = self._ready.heard(report, self._index.pool)
            if ready is not None:
                self._index.grow(ready)
            for fetch_id in report.late:
                self._index.late(fetch_id)
        for transfer in settled:
            if isinstance(transfer, StoreEntry):
                self._stores.settle(transfer)
            elif isinstance(transfer, LoadEntry):
                self._loads.settle(transfer)
            else:
                for chain in self._index.answered(transfer):
                    self._stores.take_over(chain, lost=transfer.abandoned)
        return self._loads.take_outcome()

    def passed(self, seconds: float) -> None:
        """Tell how much time has passed since the last call, once per step. Optional: without it nothing is overdue.

        A transfer that some rank has not reported for a minute is failed: the next `report` names the request that
        waits for it, and its pins are returned when all ranks have said that they do not copy any more. Until then
        nothing else is loaded or stored (I8).
        """
        self._index.passed(seconds)
        for transfer in self._ledger.passed(seconds):
            self._index.late(transfer.id)

    @property
    def overdue(self) -> str | None:
        """What some rank has not said for too long, so that nothing is loaded or stored; None if all is well."""
        return next((f"transfer {each.id}: {each.failure}" for each in self._ledger.overdue), None)

    def computed(self, tokens: int, seconds: float) -> None:
        """Tell what computing costs: a step of so many tokens of prompts took so long. Optional.

        Without it, what is below host memory is always worth waiting for, and what is on the host worth loading.
        """
        self._index.computed(tokens, seconds)
        self._loads.break_even.computed(tokens, seconds)

    def loaded(self, tokens: int, seconds: float) -> None:
        """Tell what a load cost: for so many tokens its request had to wait so long. Optional, as `computed` is."""
        self._loads.break_even.loaded(tokens, seconds)

    def reset(self, *, below: bool = True) -> None:
        """Forget everything that is cached: the weights have changed (F9). `below`: also in the tiers below the host.

        Copies in flight come to nothing. Requests that run now hold KV of the old weights, and all that they
        compute builds on it: nothing of theirs is stored until they are preempted and start again. The engine
        does the same in its own prefix cache: it forgets it now, and keeps blocks of these requests out of it.
        """
        self._stores.reset()
        self._loads.reset()
        self._index.reset(below=below)
        self._ledger.abandon()
        for request in self._requests.values():
            self._index.drop(request)
            request.stale = request.state in (State.LOADING, State.RUNNING)
            if request.reservation is not None:
                request.handle(RequestEvent.GIVE_UP)
                self._loads.release(request)
        self._index.clear()
        self._planner.reset()
        self.metrics.resets += 1

    def stop(self) -> None:
        """Forget everything, and store nothing any more: a rank cannot copy, and will not again.

        To be called once, by an engine that asks for no match from then on. What is in flight is still settled.
        """
        self.reset(below=False)
        self._stores.stopped = True

    @property
    def busy(self) -> bool:
        """Whether copies are in flight or waiting to be planned, so that an idle engine must go on stepping."""
        soon = self._loads.waiting or self._stores.waiting or self._index.waiting
        if self._stores.held_up:  # what has to wait for that keeps no idle engine from resting
            return bool(len(self._ledger) or soon)
        return bool(len(self._ledger) or soon or self._planner.waiting or self._index.sinking)

    # ------------------------------------------------------------------ looking

    def gauges(self) -> Gauges:
        """Return the state of the pools."""
        host = self._index.fill()
        return Gauges(
            slots=host.slots,
            slots_free=host.free,
            slots_cached=host.cached,
            slots_writing=host.slots - host.free - host.cached,
            slots_pinned=host.pinned,
            store_pins=self._stores.pins,
            transfers=len(self._ledger),
            transfers_unanswered=len(self._ledger.overdue),
            backlog_blocks=self._stores.backlog.blocks,
            sink_queue_blocks=host.sink_queue_blocks,
            searches=host.searches,
        )

    def is_cached(self, group: int, key: Key) -> bool:
        """Whether a key is visible."""
        return self._index.has(group, key) and not self._index.is_arriving(group, key)

    def take_events(self) -> list[CacheEvent]:
        """Return what was stored and removed since the last call (if the option `events` is on)."""
        return self._events.take()

    def _request(self, request_id: str) -> Request:
        request = self._requests.get(request_id)
        if request is None:
            raise ProtocolError(f"request {request_id!r} is not known")
        return request
