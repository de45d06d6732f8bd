"""Fetches: which blocks a request lacks, and those that are on their way up to the host, each once, whoever waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Sequence
from itertools import count, groupby, repeat

from kvtide.core.chain import Chain
from kvtide.core.groups import Group, Key, Present, common_boundary, longest_resumable
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import FetchEntry, Ledger
from kvtide.core.messages import Name
from kvtide.core.metrics import Metrics
from kvtide.core.requests import Search

Place = tuple[int, int]
"""A block of a request: its group, and its index there."""
FETCH_BLOCKS_MAX = 64
"""Blocks of one errand: small enough that a slow tier is noticed, large enough to be read in one go."""


class Fetches:
    """Takes slots for what is to come up, and makes visible what has come on every rank."""

    def __init__(self, groups: Sequence[Group], host: HostPool, ledger: Ledger, metrics: Metrics) -> None:
        self._groups = groups
        self._step = common_boundary(groups)
        self._host = host
        self._ledger = ledger
        self._metrics = metrics
        self._of_slot: dict[int, FetchEntry] = {}
        """The fetch that writes to a slot."""
        self._rising_tokens = 0.0

    @property
    def slots(self) -> KeysView[int]:
        """Slots that are being written to."""
        return self._of_slot.keys()

    # ------------------------------------------------------------------ what a request lacks

    def lacking(self, search: Search, boundary: int | None = None) -> tuple[dict[Place, Name], Collection[FetchEntry]]:
        """Return the blocks that the host does not have, and the fetches that bring some of the others up.

        `boundary`: of those that resuming there needs.
        """
        lacking: dict[Place, Name] = {}
        fetches: dict[int, FetchEntry] = {}
        for place, name in self._beyond(search):
            if boundary is not None and not self._needs(*place, boundary):
                continue
            slot = self._host.slot_of(*name)
            if slot is None:
                lacking[place] = name
            elif (fetch := self._bringing(slot)) is not None:
                fetches[fetch.id] = fetch
        return lacking, fetches.values()

    def resumable(self, search: Search, found: set[Name]) -> int:
        """Return up to where a request could resume with what is on the host, on its way, and found below."""

        def present(group: int) -> Present:
            keys = search.request.keys[group]

            def there(block: int) -> bool:
                return block < len(keys) and (
                    (group, keys[block]) in found
                    or self._host.is_cached(group, keys[block])
                    or self._bringing(self._host.slot_of(group, keys[block])) is not None
                )

            return there

        presents = [present(index) for index in range(len(self._groups))]
        return longest_resumable(self._groups, search.device_tokens, search.limit, presents, self._step)

    def _beyond(self, search: Search) -> Iterator[tuple[Place, Name]]:
        """Yield the blocks beyond what a request has: up to there it lacks nothing that a longer prefix needs."""
        if len(self._groups) == 1:  # as usual: a step is a block
            first = search.on_host // self._step
            keys = search.request.keys[0][first : search.limit // self._step]
            yield from zip(zip(repeat(0), count(first)), zip(repeat(0), keys), strict=False)
            return
        for boundary in range(search.on_host // self._step * self._step, search.limit, self._step):
            for index, group in enumerate(self._groups):
                # Keys of what the device has need not be known here.
                first = max(boundary, search.device_tokens) // group.block_tokens
                last = min((boundary + self._step) // group.block_tokens, len(search.request.keys[index]))
                for block in range(first, last):
                    yield (index, block), (index, search.request.keys[index][block])

    def _needs(self, index: int, block: int, boundary: int) -> bool:
        group = self._groups[index]
        return group.first_needed(boundary) <= block < boundary // group.block_tokens

    def _bringing(self, slot: int | None) -> FetchEntry | None:
        """Return the fetch that brings something up to a slot, if it can be waited for."""
        fetch = None if slot is None else self._of_slot.get(slot)
        return None if fetch is None or fetch.late else fetch

    # ------------------------------------------------------------------ on its way up

    def begin(self, keys: Sequence[Sequence[Key]], wanted: Sequence[Place], waited_s: float) -> list[FetchEntry]:
        """Begin to fetch blocks, as far as there is room."""
        # Half of the host at most, so that one prompt does not drive everything else out.
        room = max(1, self._host.slots // 2) - len(self._of_slot)
        slots = self._host.take(min(len(wanted), max(0, room)))
        fetches = []
        for first in range(0, len(slots), FETCH_BLOCKS_MAX):
            part = slots[first : first + FETCH_BLOCKS_MAX]
            blocks = sorted(wanted[first : first + len(part)])  # by group, so that blocks follow each other
            fetch = FetchEntry(self._ledger.next_id(), chains=self._chains(keys, blocks, part), waited_s=waited_s)
            for chain in fetch.chains:
                self._host.assign(chain)
                fetch.names += [(chain.group, key) for key in chain.keys]
                fetch.slots += chain.slots
            self._of_slot.update(dict.fromkeys(fetch.slots, fetch))
            self._rising_tokens += self._tokens(fetch)
            fetch.queued_tokens = self._rising_tokens
            fetches.append(fetch)
        return fetches

    def rely_on(self, slots: Iterable[int | None]) -> None:
        """Blocks that were computed are not stored, for they are on their way up. If they do not come, they are."""
        if self._of_slot:
            for slot in self._of_slot.keys() & set(slots):
                self._of_slot[slot].relied_on.add(slot)

    def settle(self, fetch: FetchEntry) -> tuple[list[int], list[Chain]]:
        """Every rank has written what it could. Returns the slots that are visible now, and what has to be stored."""
        for slot in fetch.slots:
            del self._of_slot[slot]
        self._rising_tokens -= self._tokens(fetch)
        everywhere = set() if fetch.abandoned else {fetch.slots[position] for position in fetch.hits}
        came_up: list[int] = []
        unkept: list[Chain] = []
        for chain in fetch.chains:
            for part in self._cut(chain, everywhere):
                if part.slots[0] in everywhere:
                    self._host.commit(part)
                    came_up += part.slots
                else:
                    self._host.abandon(part)
                    relied_on = (at for at, slot in enumerate(part.slots) if slot in fetch.relied_on)
                    unkept += [part.part(at, at + 1, self._size(part)) for at in relied_on]
        self._metrics.fetched_blocks += len(came_up)
        if not fetch.abandoned:
            self._metrics.fetch_missed_blocks += len(fetch.slots) - len(came_up)
        return came_up, unkept

    def _chains(self, keys: Sequence[Sequence[Key]], blocks: list[Place], slots: list[int]) -> list[Chain]:
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

    def _cut(self, chain: Chain, everywhere: set[int]) -> Iterator[Chain]:
        """Cut a chain where blocks that every rank has begin or end."""
        for _, run in groupby(range(len(chain)), key=lambda at: chain.slots[at] in everywhere):
            first, *rest = run
            part = chain.part(first, first + 1 + len(rest), self._size(chain))
            part.slots = chain.slots[first : first + len(part)]
            yield part

    def _size(self, chain: Chain) -> int:
        return self._groups[chain.group].block_tokens

    def _tokens(self, fetch: FetchEntry) -> float:
        """Return the tokens of a fetch, of which each group brings its share."""
        return sum(len(chain) * self._size(chain) for chain in fetch.chains) / len(self._groups)
