"""Searches: requests that wait for what may be below host memory.

A request asks once. First a lookup says which of the blocks that the host lacks are below; then those that it can
resume from are fetched to host slots; then it is matched again, and finds them on the host like any other block. It
stops waiting when a tier is late (F18). Blocks that are on their way up for somebody else are not fetched twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.core.below.fetches import Fetches
from kvtide.core.config import OffloadConfig
from kvtide.core.groups import Present, common_boundary, longest_resumable
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import FetchEntry, Ledger, LookupEntry
from kvtide.core.loading.match import Match
from kvtide.core.messages import Name
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotLoaded
from kvtide.core.requests import Request, Search

LOOKUP_BLOCKS_MAX = 16_384
"""Blocks of one lookup. Of a longer prompt the beginning is looked for."""
SEARCHES_MAX = 256
"""Requests that search at a time; others compute."""
_NOT_THERE = (NotLoaded.NOT_CACHED, NotLoaded.STILL_STORING)


class Searches:
    """Turns what requests lack into lookups and fetches, and tells when they need not wait any longer."""

    def __init__(
        self,
        config: OffloadConfig,
        host: HostPool,
        fetches: Fetches,
        break_even: FetchBreakEven,
        *,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._groups = config.geometry.groups
        self._step = common_boundary(self._groups)
        self._min_tokens = config.min_fetch_tokens if config.below is not None else math.inf
        self._host = host
        self._fetches = fetches
        self._break_even = break_even
        self._ledger = ledger
        self._metrics = metrics
        self._under_way: set[Search] = set()
        self._planned: list[LookupEntry] = []
        self._answered: list[LookupEntry] = []

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether the next plan will have something."""
        return bool(self._planned or self._answered)

    # ------------------------------------------------------------------ requests

    def matched(self, request: Request, match: Match) -> Match:
        """Say in a match whether the request should wait, or what it has waited for in vain. Changes nothing."""
        search = request.search
        if self._should_wait(match) if search is None else not search.over:
            return replace(match, waits=True)
        if search is not None and search.late:
            missed = {NotLoaded.TIER_LATE if why in _NOT_THERE else why: n for why, n in match.missed.items()}
            return replace(match, missed=missed)
        return match

    def _should_wait(self, match: Match) -> bool:
        missing = self._limit(match.num_tokens) - match.device_tokens - match.tokens
        return missing >= self._min_tokens and len(self._under_way) < SEARCHES_MAX and self._break_even.pays(missing)

    def reserved(self, request: Request, match: Match) -> None:
        """A request was matched, and what was found is pinned: begin the search if there is to be one."""
        if request.search is None:
            self._break_even.decided(tried=match.waits)
            if match.waits:
                self._begin(request, match)
        elif request.search.over:
            self._unpin(request.search)

    def drop(self, request: Request) -> None:
        """A request goes on without, or is over."""
        if request.search is not None:
            self._end(request.search)
            self._unpin(request.search)

    def _begin(self, request: Request, match: Match) -> None:
        """Ask for all blocks that the host lacks. If they are on their way up already, wait for them."""
        search = request.search = Search(request, match.device_tokens, match.num_tokens)
        self._under_way.add(search)
        lacking, fetches = self._lacking(search, self._beyond(search))
        if lacking:
            names = [(group, request.keys[group][block]) for group, block in lacking[:LOOKUP_BLOCKS_MAX]]
            lookup = LookupEntry(self._ledger.next_id(), names=names, search=search)
            search.errands.add(lookup.id)
            self._planned.append(lookup)
            self._metrics.lookups += 1
        else:
            self._wait_for(search, fetches)
        self._end_if_idle(search)

    # ------------------------------------------------------------------ what comes back

    def looked_up(self, lookup: LookupEntry) -> None:
        """Every rank has said what it has. The next plan begins to fetch."""
        if lookup.failure is None:
            self._break_even.looked_up(lookup.seconds)
        self._answered.append(lookup)

    def plan(self) -> list[LookupEntry | FetchEntry]:
        """Return what begins now."""
        lookups, self._planned = self._planned, []
        answered, self._answered = self._answered, []
        return [*lookups, *(fetch for lookup in answered for fetch in self._fetch(lookup))]

    def _fetch(self, lookup: LookupEntry) -> list[FetchEntry]:
        """Fetch what the request can resume from, and wait for what somebody else fetches."""
        search = lookup.search
        if search.over:
            return []  # nobody waits any more
        search.errands.discard(lookup.id)
        boundary = self._boundary(search, {lookup.names[position] for position in lookup.hits})
        begun: list[FetchEntry] = []
        if boundary - self._on_host(search) >= self._min_tokens:
            lacking, fetches = self._lacking(search, self._needed(search, boundary))
            begun = self._fetches.begin(search.request.keys, lacking, lookup.seconds)
            self._wait_for(search, [*fetches, *begun])
        self._end_if_idle(search)
        return begun

    def fetched(self, fetch: FetchEntry, came_up: list[int]) -> None:
        """Keep what has come up until the requests that waited for it are matched again."""
        if fetch.failure is None and not fetch.abandoned:
            self._break_even.fetched(fetch.queued_tokens, fetch.seconds)
        for search in fetch.searches:
            if not search.over:
                search.errands.discard(fetch.id)
                self._host.pin(came_up)
                search.slots += came_up
                self._end_if_idle(search)

    def late(self, fetch: FetchEntry) -> None:
        """A tier keeps requests waiting for too long: they go on without (F18)."""
        fetch.late = True
        self._metrics.fetches_late += any(not search.over for search in fetch.searches)
        for search in fetch.searches:
            self.give_up(search)

    def give_up(self, search: Search) -> None:
        """A request need not wait any longer, if it still does: a tier was too slow."""
        if not search.over:
            search.late = True
            self._end(search)

    def reset(self) -> None:
        """Forget what was going to be asked for. Searches are dropped one by one, with their requests."""
        self._planned.clear()

    def _wait_for(self, search: Search, fetches: Iterable[FetchEntry]) -> None:
        for fetch in fetches:
            search.errands.add(fetch.id)
            fetch.searches.append(search)

    def _end_if_idle(self, search: Search) -> None:
        if not search.errands:
            self._end(search)

    def _end(self, search: Search) -> None:
        search.over = True
        search.errands.clear()
        self._under_way.discard(search)

    def _unpin(self, search: Search) -> None:
        self._host.unpin(search.slots)
        search.slots = []

    # ------------------------------------------------------------------ which blocks

    def _beyond(self, search: Search) -> Iterator[tuple[int, int]]:
        """Yield group and index of the blocks beyond what the request has, beginnings first."""
        first = self._on_host(search)  # up to there it lacks nothing that a longer prefix needs
        for boundary in range(first // self._step * self._step, self._limit(search.num_tokens), self._step):
            for index, group in enumerate(self._groups):
                last = min((boundary + self._step) // group.block_tokens, len(search.request.keys[index]))
                for block in range(boundary // group.block_tokens, last):
                    yield index, block

    def _needed(self, search: Search, boundary: int) -> Iterator[tuple[int, int]]:
        """Yield those among them that resuming at `boundary` needs."""
        for index, block in self._beyond(search):
            group = self._groups[index]
            if group.first_needed(boundary) <= block < boundary // group.block_tokens:
                yield index, block

    def _lacking(
        self, search: Search, blocks: Iterable[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[FetchEntry]]:
        """Return the blocks that the host does not have, and the fetches that bring some of the others up."""
        lacking: list[tuple[int, int]] = []
        fetches: dict[int, FetchEntry] = {}
        for group, block in blocks:
            key = search.request.keys[group][block]
            fetch = self._fetches.bringing(group, key)
            if fetch is not None:
                fetches[fetch.id] = fetch
            elif not self._host.has(group, key):
                lacking.append((group, block))
        return lacking, list(fetches.values())

    def _boundary(self, search: Search, found: set[Name]) -> int:
        """Return up to where the request could resume with what is on the host, on its way, and below."""

        def present(group: int) -> Present:
            keys = search.request.keys[group]

            def there(block: int) -> bool:
                return block < len(keys) and (
                    (group, keys[block]) in found
                    or self._host.is_cached(group, keys[block])
                    or self._fetches.bringing(group, keys[block]) is not None
                )

            return there

        presents = [present(index) for index in range(len(self._groups))]
        limit = self._limit(search.num_tokens)
        return longest_resumable(self._groups, search.device_tokens, limit, presents, self._step)

    def _on_host(self, search: Search) -> int:
        """Return up to where the request could resume with what is reserved for it."""
        reservation = search.request.reservation
        return search.device_tokens + (reservation.tokens if reservation is not None else 0)

    def _limit(self, num_tokens: int) -> int:
        """Return up to where a request could resume: one token is left to compute."""
        return (num_tokens - 1) // self._step * self._step
