"""Searches: requests that wait for what may be below host memory, and the fetches that bring it up.

A request asks once. First a lookup says which of the blocks that the host lacks are below; then those that it can
resume from are fetched to host slots; then it is matched again, and finds them on the host like any other block. It
stops waiting when a tier is late (F18). Blocks that are on their way up for somebody else are not fetched twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.core.below.sinks import Sinks
from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.groups import Key, Present, common_boundary, longest_resumable
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Entry, FetchEntry, Ledger, LookupEntry
from kvtide.core.match import Match
from kvtide.core.messages import Name
from kvtide.core.metrics import Metrics
from kvtide.core.requests import Request, Search

FETCH_BLOCKS_MAX = 64
"""Blocks of one errand: small enough that a slow tier is noticed, large enough to be read in one go."""
LOOKUP_BLOCKS_MAX = 16_384
"""Blocks of one lookup. Of a longer prompt the beginning is looked for."""
SEARCHES_MAX = 256
"""Requests that search at a time; others compute."""


class Searches:
    """Turns what requests lack into lookups and fetches, and tells when they need not wait any longer."""

    def __init__(self, config: OffloadConfig, host: HostPool, sinks: Sinks, ledger: Ledger, metrics: Metrics) -> None:
        self._groups = config.geometry.groups
        self._step = common_boundary(self._groups)
        self._min_tokens = config.min_fetch_tokens
        self._enabled = config.below is not None
        self._host = host
        self._sinks = sinks
        self._ledger = ledger
        self._metrics = metrics
        self.break_even = FetchBreakEven()
        self._searching: dict[str, Request] = {}
        self._fetch_of: dict[int, FetchEntry] = {}
        """The fetch that writes to a slot."""
        self._rising_tokens = 0.0
        self._planned: list[LookupEntry | FetchEntry] = []
        self._answered: list[LookupEntry] = []
        self._unkept: list[Chain] = []

    def __len__(self) -> int:
        return len(self._searching)

    @property
    def waiting(self) -> bool:
        """Whether the next plan will have something."""
        return bool(self._planned or self._answered)

    # ------------------------------------------------------------------ requests

    def waits(self, request: Request, match: Match) -> bool:
        """Whether a request should wait for what is below, or goes on waiting. Changes nothing."""
        if not self._enabled:
            return False
        if request.search is not None:
            return not request.search.over
        missing = self._limit(match.num_tokens) - match.device_tokens - match.tokens
        return (
            self._sinks.open
            and missing >= self._min_tokens
            and len(self._searching) < SEARCHES_MAX
            and self.break_even.pays(missing)
        )

    def reserved(self, request: Request, match: Match) -> None:
        """A request was matched, and what was found is pinned: begin the search if there is to be one."""
        search = request.search
        if search is not None:
            if search.over:
                self._unpin(search)
            return
        self.break_even.decided(tried=match.waits)
        if match.waits:
            request.search = Search(request.id, match.device_tokens, match.num_tokens)
            self._searching[request.id] = request
            self._look(request, request.search)

    def drop(self, request: Request) -> None:
        """A request goes on without, or is over."""
        if request.search is not None:
            self._end(request.search)
            self._unpin(request.search)

    def _look(self, request: Request, search: Search) -> None:
        """Ask for all blocks that the host lacks, and wait for those that are on their way up."""
        names: list[Name] = []
        fetches: dict[int, FetchEntry] = {}
        for group, block in self._beyond(request, search):
            key = request.keys[group][block]
            fetch = self._rising(group, key)
            if fetch is not None:
                fetches[fetch.id] = fetch
            elif key not in self._host.known(group) and len(names) < LOOKUP_BLOCKS_MAX:
                names.append((group, key))
        if names:
            lookup = LookupEntry(self._ledger.next_id(), names=names, search=search)
            search.errands.add(lookup.id)
            self._planned.append(lookup)
            self._metrics.lookups += 1
        else:
            self._join(search, fetches)
        if not search.errands:
            self._end(search)

    def _join(self, search: Search, fetches: Mapping[int, FetchEntry]) -> None:
        for fetch in fetches.values():
            search.errands.add(fetch.id)
            fetch.waiting.append(search)

    def _beyond(self, request: Request, search: Search) -> Iterator[tuple[int, int]]:
        """Yield group and index of the blocks beyond what the request has, beginnings first."""
        limit = self._limit(search.num_tokens)
        first = search.device_tokens
        if request.reservation is not None:
            first += request.reservation.tokens  # up to there it lacks nothing that a longer prefix needs
        for boundary in range(first // self._step * self._step, limit, self._step):
            for index, group in enumerate(self._groups):
                keys = request.keys[index]
                last = min((boundary + self._step) // group.block_tokens, len(keys))
                for block in range(boundary // group.block_tokens, last):
                    yield index, block

    def _limit(self, num_tokens: int) -> int:
        """Return up to where a request could resume: one token is left to compute."""
        return (num_tokens - 1) // self._step * self._step

    def rely_on(self, slots: Iterable[int | None]) -> None:
        """Blocks that were computed are not stored, for they are on their way up. If they do not come, they are."""
        if self._fetch_of:
            for slot in self._fetch_of.keys() & set(slots):
                self._fetch_of[slot].relied_on.add(slot)

    def take_unkept(self) -> list[Chain]:
        """Return blocks that somebody relied on and that have not come: they have to be stored after all."""
        unkept, self._unkept = self._unkept, []
        return unkept

    # ------------------------------------------------------------------ what comes back

    def looked_up(self, lookup: LookupEntry) -> None:
        """Every rank has said what it has. The next plan begins to fetch."""
        if lookup.failure is None:
            self.break_even.looked_up(lookup.seconds)
        self._answered.append(lookup)

    def _begin(self, lookup: LookupEntry) -> None:
        """Fetch what the request can resume from."""
        search = lookup.search
        if search is None or search.over:
            return  # nobody waits any more
        request = self._searching[search.request_id]
        search.errands.discard(lookup.id)
        found = {lookup.names[position] for position in lookup.hits}
        boundary = self._boundary(request, search, found)
        on_host = search.device_tokens + (request.reservation.tokens if request.reservation is not None else 0)
        if boundary - on_host >= self._min_tokens:
            self._fetch(request, search, boundary, lookup.seconds)
        if not search.errands:
            self._end(search)

    def fetched(self, fetch: FetchEntry) -> None:
        """Every rank has written what it could: make visible what all of them have, and tell who waits."""
        for slot in fetch.slots:
            del self._fetch_of[slot]
        self._rising_tokens -= self._tokens(fetch)
        hits = set() if fetch.abandoned else set(fetch.hits)
        arrived: list[int] = []
        position = 0
        for chain in fetch.chains:
            size = self._groups[chain.group].block_tokens
            for first, last in _runs(position, len(chain), hits):
                part = chain.part(first, last, size)
                part.slots = chain.slots[first:last]
                if position + first in hits:
                    self._host.commit(part)
                    arrived += part.slots
                else:
                    self._host.abandon(part)
                    self._unkept += [
                        part.part(at, at + 1, size) for at, slot in enumerate(part.slots) if slot in fetch.relied_on
                    ]
            position += len(chain)
        self._sinks.came_up(arrived)
        self._metrics.fetched_blocks += len(arrived)
        if not fetch.abandoned:
            self._metrics.fetch_missed_blocks += len(fetch.slots) - len(arrived)
            if fetch.failure is None:
                self.break_even.fetched(fetch.queued_tokens, fetch.seconds)
        for search in fetch.waiting:
            if fetch.id in search.errands:
                self._arrived(fetch, search, arrived)

    def late(self, fetch_id: int) -> None:
        """A tier keeps requests waiting for too long: they go on without (F18)."""
        fetch = self._ledger.get(fetch_id)
        if not isinstance(fetch, FetchEntry):
            return
        fetch.late = True
        self._metrics.fetches_late += any(fetch.id in search.errands for search in fetch.waiting)
        for search in fetch.waiting:
            if not search.over:
                search.late = True
                self._end(search)

    def overdue(self, errand: Entry) -> None:
        """Some rank does not answer at all."""
        if isinstance(errand, FetchEntry):
            self.late(errand.id)
        elif isinstance(errand, LookupEntry) and errand.search is not None and not errand.search.over:
            errand.search.late = True
            self._end(errand.search)

    def take_planned(self) -> list[LookupEntry | FetchEntry]:
        """Return what begins now; from now on answers are expected."""
        answered, self._answered = self._answered, []
        for lookup in answered:
            self._begin(lookup)
        planned, self._planned = self._planned, []
        return planned

    def reset(self) -> None:
        """Forget what was going to be asked for. Searches are dropped one by one, with their requests."""
        self._planned.clear()

    # ------------------------------------------------------------------ fetching

    def _boundary(self, request: Request, search: Search, found: set[Name]) -> int:
        """Return up to where the request could resume with what is on the host, on its way, and below."""

        def present(group: int) -> Present:
            keys = request.keys[group]

            def there(block: int) -> bool:
                return block < len(keys) and (
                    (group, keys[block]) in found
                    or self._cached(group, keys[block])
                    or self._rising(group, keys[block]) is not None
                )

            return there

        limit = self._limit(search.num_tokens)
        presents = [present(index) for index in range(len(self._groups))]
        return longest_resumable(self._groups, search.device_tokens, limit, presents, self._step)

    def _fetch(self, request: Request, search: Search, boundary: int, waited_s: float) -> None:
        """Begin to fetch what resuming at `boundary` needs, and wait for what somebody else fetches."""
        wanted: list[tuple[int, int]] = []
        rising: dict[int, FetchEntry] = {}
        for group, block in self._beyond(request, search):
            size, key = self._groups[group].block_tokens, request.keys[group][block]
            needed = self._groups[group].first_needed(boundary) <= block < boundary // size
            fetch = self._rising(group, key) if needed else None
            if fetch is not None:
                rising[fetch.id] = fetch
            elif needed and key not in self._host.known(group):
                wanted.append((group, block))  # it was found, or it would not be needed
        self._join(search, rising)
        # Half of the host at most, so that one prompt does not drive everything else out.
        room = max(1, self._host.slots // 2) - len(self._fetch_of)
        slots = self._host.take(min(len(wanted), max(0, room)))
        self._begin_fetches(request, search, wanted[: len(slots)], slots, waited_s)

    def _begin_fetches(
        self, request: Request, search: Search, wanted: list[tuple[int, int]], slots: list[int], waited_s: float
    ) -> None:
        for first in range(0, len(wanted), FETCH_BLOCKS_MAX):
            part = sorted(wanted[first : first + FETCH_BLOCKS_MAX])  # by group, so that blocks follow each other
            chains = self._chains(request.keys, part, slots[first : first + FETCH_BLOCKS_MAX])
            fetch = FetchEntry(self._ledger.next_id(), chains=chains, waited_s=waited_s)
            for chain in chains:
                self._host.assign(chain)
                fetch.names += [(chain.group, key) for key in chain.keys]
                fetch.slots += chain.slots
            self._fetch_of.update(dict.fromkeys(fetch.slots, fetch))
            self._rising_tokens += self._tokens(fetch)
            fetch.queued_tokens = self._rising_tokens
            self._join(search, {fetch.id: fetch})
            self._planned.append(fetch)

    def _tokens(self, fetch: FetchEntry) -> float:
        """Return the tokens of a fetch, of which each group brings its share."""
        blocks_tokens = sum(len(chain) * self._groups[chain.group].block_tokens for chain in fetch.chains)
        return blocks_tokens / len(self._groups)

    def _chains(self, keys: Sequence[Sequence[Key]], blocks: list[tuple[int, int]], slots: list[int]) -> list[Chain]:
        """Join blocks that follow each other."""
        chains: list[Chain] = []
        before = (-1, -1)
        for (group, block), slot in zip(blocks, slots, strict=True):
            if (group, block - 1) != before:
                parent = keys[group][block - 1] if block else None
                chains.append(Chain(group, [], parent, (block + 1) * self._groups[group].block_tokens))
            chains[-1].keys.append(keys[group][block])
            chains[-1].slots.append(slot)
            before = (group, block)
        return chains

    def _cached(self, group: int, key: Key) -> bool:
        slot = self._host.known(group).get(key)
        return slot is not None and self._host.cached[slot] == 1

    def _rising(self, group: int, key: Key) -> FetchEntry | None:
        """Return the fetch that brings a block up, if it can be waited for."""
        fetch = self._fetch_of.get(self._host.known(group).get(key, -1))
        return None if fetch is None or fetch.late else fetch

    # ------------------------------------------------------------------ the end

    def _arrived(self, fetch: FetchEntry, search: Search, slots: list[int]) -> None:
        """Keep what has come until the request is matched again; it need not wait when this was the last."""
        search.errands.discard(fetch.id)
        self._host.pin(slots)
        search.slots += slots
        if not search.errands:
            self._end(search)

    def _end(self, search: Search) -> None:
        search.over = True
        search.errands.clear()
        self._searching.pop(search.request_id, None)

    def _unpin(self, search: Search) -> None:
        self._host.unpin(search.slots)
        search.slots = []


def _runs(offset: int, count: int, hits: set[int]) -> Iterator[tuple[int, int]]:
    """Cut `[0, count)` where being a hit begins or ends; `hits` are counted from `offset` before it."""
    first = 0
    for last in range(1, count + 1):
        if last == count or (offset + last in hits) != (offset + first in hits):
            yield first, last
            first = last
