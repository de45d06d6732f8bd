"""Everything that concerns the tiers below host memory, as the rest of the core sees it: one object.

A request asks for what the host lacks, once. First a lookup says which blocks are below; then those that it can resume
from are fetched to host slots; then it is matched again, and finds them on the host like any other block. It stops
waiting when a tier is late (F18). Blocks that are on their way up for somebody else are not fetched twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import replace

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.core.below.fetches import Fetches
from kvtide.core.below.sinks import Sinks
from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.groups import common_boundary
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import ClearEntry, Entry, ErrandEntry, FetchEntry, Ledger, LookupEntry, SinkEntry
from kvtide.core.match import Match
from kvtide.core.messages import Errand
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotLoaded
from kvtide.core.requests import Request, Search

LOOKUP_BLOCKS_MAX = 16_384
"""Blocks of one lookup. Of a longer prompt the beginning is looked for."""
SEARCHES_MAX = 256
"""Requests that search at a time; others compute."""
_NOT_THERE = (NotLoaded.NOT_CACHED, NotLoaded.STILL_STORING)


class Below:
    """Requests search for what the host lacks, `Fetches` bring it up, and `Sinks` let blocks of the host go down.

    Without tiers nobody searches, nothing sinks, and there are no errands.
    """

    def __init__(self, config: OffloadConfig, host: HostPool, ledger: Ledger, metrics: Metrics) -> None:
        self.has_tiers = config.below is not None
        self._min_tokens = config.min_fetch_tokens if self.has_tiers else math.inf
        self._step = common_boundary(config.geometry.groups)
        self._host = host
        self._ledger = ledger
        self._metrics = metrics
        self._break_even = FetchBreakEven()
        self._fetches = Fetches(config.geometry.groups, host, ledger, metrics)
        self._sinks = Sinks(config.below, host, ledger, metrics)
        self._searches: set[Search] = set()
        """Those that are not over."""
        self._planned: list[LookupEntry] = []
        self._answered: list[LookupEntry] = []
        self._clear_due = False
        """The next plan tells the tiers to forget everything."""

    # ------------------------------------------------------------------ requests

    def matched(self, request: Request, match: Match) -> Match:
        """Say in a match whether the request should wait, or what it has waited for in vain. Changes nothing."""
        search = request.search
        if search is None:
            missing = self._limit(match) - match.device_tokens - match.tokens
            if missing < self._min_tokens:
                return match
            if len(self._searches) < SEARCHES_MAX and self._break_even.pays(missing):
                return replace(match, waits=True)
            return self._because(match, NotLoaded.TIER_NOT_ASKED)
        if not search.over:
            return replace(match, waits=True)
        return self._because(match, NotLoaded.TIER_LATE) if search.late else match

    def _because(self, match: Match, why_not: NotLoaded) -> Match:
        """Say why what the host does not have was not brought up."""
        return replace(match, missed={why_not if why in _NOT_THERE else why: n for why, n in match.missed.items()})

    def _limit(self, match: Match) -> int:
        """Return up to where a request could resume: one token is left to compute."""
        return (match.num_tokens - 1) // self._step * self._step

    def reserved(self, request: Request, match: Match) -> None:
        """A request was matched, and what was found is pinned: begin the search if there is to be one."""
        if request.search is None:
            self._break_even.decided(tried=match.waits)
            if match.waits:
                self._begin(request, match)
        elif request.search.over:
            self._unpin(request.search)

    def drop(self, request: Request) -> None:
        """A request goes on without what is below, or is over."""
        if request.search is not None:
            self._end(request.search)
            self._unpin(request.search)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""
        self._break_even.computed(tokens, seconds)

    # ------------------------------------------------------------------ blocks of the host

    def stored(self, chain: Chain) -> None:
        """A chain is on the host now."""
        self._sinks.stored(chain)

    def used(self, slots: Sequence[int]) -> None:
        """Slots were loaded from."""
        self._sinks.used(slots)

    def rely_on(self, slots: Iterable[int | None]) -> None:
        """Blocks that were computed are not stored, because the host has them or is about to."""
        self._fetches.rely_on(slots)

    # ------------------------------------------------------------------ steps

    def plan(self, *, sinks: bool = True) -> tuple[Errand, ...]:
        """Return what the workers have to do; from now on answers are expected. Without `sinks`, these wait.

        A clear comes first: what is behind it, in this plan or a later one, is of the new weights (F9).
        """
        if not self.has_tiers:
            return ()
        clear = [ClearEntry(self._ledger.next_id())] if self._clear_due else []
        lookups, answered = self._planned, self._answered
        self._planned, self._answered, self._clear_due = [], [], False
        fetches = [fetch for lookup in answered for fetch in self._fetch(lookup)]
        errands: list[ErrandEntry] = [*clear, *lookups, *fetches, *(self._sinks.plan() if sinks else ())]
        for errand in errands:
            self._ledger.start(errand)
        return tuple(errand.as_errand() for errand in errands)

    def settle(self, errand: Entry) -> list[Chain]:
        """Every rank has answered. Returns what somebody relied on and has not come: it has to be stored after all."""
        unkept: list[Chain] = []
        if isinstance(errand, LookupEntry):
            if errand.failure is None:
                self._break_even.looked_up(errand.seconds)
            if errand.hits:
                self._answered.append(errand)  # the next plan begins to fetch
            else:
                self._fetch(errand)  # there is nothing to begin
        elif isinstance(errand, SinkEntry):
            self._sinks.settle(errand)
        elif isinstance(errand, FetchEntry):
            came_up, unkept = self._fetches.settle(errand)
            self._sinks.came_up(came_up)
            self._came_up(errand, came_up)
        return unkept

    def late(self, errand_id: int) -> None:
        """Nobody waits for this any longer: a tier is past its deadline (F18), or some rank does not answer at all."""
        errand = self._ledger.get(errand_id)
        if isinstance(errand, FetchEntry):
            errand.late = True
            self._metrics.fetches_late += any(not search.over for search in errand.searches)
            for search in errand.searches:
                self._give_up(search)
        elif isinstance(errand, LookupEntry):
            self._give_up(errand.search)

    def reset(self, *, clear: bool) -> None:
        """Forget what was going to be done. `clear`: what is in the tiers is of no use any more.

        Searches are dropped one by one, with their requests.
        """
        self._planned.clear()
        self._sinks.reset()
        self._clear_due |= clear and self.has_tiers

    @property
    def waiting(self) -> bool:
        """Whether the next plan will have something, apart from what waits to sink."""
        return bool(self._clear_due or self._planned or self._answered)

    @property
    def rising(self) -> KeysView[int]:
        """Slots that something is being fetched to."""
        return self._fetches.slots

    @property
    def searches(self) -> int:
        """Requests that wait."""
        return len(self._searches)

    @property
    def sink_queue_blocks(self) -> int:
        """Blocks that wait to sink."""
        return self._sinks.queue_blocks

    @property
    def sinking_blocks(self) -> int:
        """Blocks that tiers should have, and do not have yet, as far as is known."""
        return self._sinks.left_blocks

    def drain(self) -> None:
        """Nothing is stored any more: let everything sink that the tiers should have."""
        self._sinks.drain()

    # ------------------------------------------------------------------ searches

    def _begin(self, request: Request, match: Match) -> None:
        """Ask for all blocks that the host lacks. If they are on their way up already, wait for them."""
        search = request.search = Search(request, match.device_tokens, self._limit(match))
        self._searches.add(search)
        lacking, fetches = self._fetches.lacking(search)
        if lacking:
            names = list(lacking.values())[:LOOKUP_BLOCKS_MAX]
            lookup = LookupEntry(self._ledger.next_id(), names=names, search=search)
            search.errands.add(lookup.id)
            self._planned.append(lookup)
            self._metrics.lookups += 1
        else:
            self._wait_for(search, fetches)
        self._end_if_idle(search)

    def _fetch(self, lookup: LookupEntry) -> list[FetchEntry]:
        """Fetch what the request can resume from, and wait for what somebody else fetches."""
        search, begun = lookup.search, []
        if search.over:
            return []  # nobody waits any more
        search.errands.discard(lookup.id)
        boundary = self._fetches.resumable(search, {lookup.names[position] for position in lookup.hits})
        if boundary - search.on_host >= self._min_tokens:
            lacking, fetches = self._fetches.lacking(search, boundary)
            begun = self._fetches.begin(search.request.keys, list(lacking), lookup.seconds)
            self._wait_for(search, [*fetches, *begun])
        self._end_if_idle(search)
        return begun

    def _wait_for(self, search: Search, fetches: Iterable[FetchEntry]) -> None:
        for fetch in fetches:
            search.errands.add(fetch.id)
            fetch.searches.append(search)

    def _came_up(self, fetch: FetchEntry, slots: list[int]) -> None:
        """Keep what has come until the requests that waited for it are matched again."""
        if fetch.failure is None and not fetch.abandoned:
            self._break_even.fetched(fetch.queued_tokens, fetch.seconds)
        for search in fetch.searches:
            if not search.over:
                search.errands.discard(fetch.id)
                self._host.pin(slots)
                search.slots += slots
                self._end_if_idle(search)

    def _give_up(self, search: Search) -> None:
        if not search.over:
            search.late = True
            self._end(search)

    def _end_if_idle(self, search: Search) -> None:
        if not search.errands:
            self._end(search)

    def _end(self, search: Search) -> None:
        search.over = True
        self._searches.discard(search)

    def _unpin(self, search: Search) -> None:
        self._host.unpin(search.slots)
        search.slots = []
