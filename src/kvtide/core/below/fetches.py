"""Fetches: blocks on their way up to the host, each of them once, whoever waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kvtide.core.chain import Chain
from kvtide.core.groups import Group, Key
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import FetchEntry, Ledger
from kvtide.core.metrics import Metrics

FETCH_BLOCKS_MAX = 64
"""Blocks of one errand: small enough that a slow tier is noticed, large enough to be read in one go."""


class Fetches:
    """Takes slots for what is to come up, and makes visible what has come on every rank."""

    def __init__(self, groups: Sequence[Group], host: HostPool, ledger: Ledger, metrics: Metrics) -> None:
        self._block_tokens = [group.block_tokens for group in groups]
        self._host = host
        self._ledger = ledger
        self._metrics = metrics
        self._of_slot: dict[int, FetchEntry] = {}
        """The fetch that writes to a slot."""
        self._rising_tokens = 0.0

    def bringing(self, group: int, key: Key) -> FetchEntry | None:
        """Return the fetch that brings a block up, if it can be waited for."""
        slot = self._host.slot_of(group, key)
        fetch = None if slot is None else self._of_slot.get(slot)
        return None if fetch is None or fetch.late else fetch

    def begin(
        self, keys: Sequence[Sequence[Key]], wanted: Sequence[tuple[int, int]], waited_s: float
    ) -> list[FetchEntry]:
        """Begin to fetch blocks, given as group and index, as far as there is room."""
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
                    unkept += [self._block(part, at) for at, slot in enumerate(part.slots) if slot in fetch.relied_on]
        self._metrics.fetched_blocks += len(came_up)
        if not fetch.abandoned:
            self._metrics.fetch_missed_blocks += len(fetch.slots) - len(came_up)
        return came_up, unkept

    def _chains(self, keys: Sequence[Sequence[Key]], blocks: list[tuple[int, int]], slots: list[int]) -> list[Chain]:
        """Join blocks that follow each other."""
        chains: list[Chain] = []
        before = (-1, -1)
        for (group, block), slot in zip(blocks, slots, strict=True):
            if (group, block - 1) != before:
                parent = keys[group][block - 1] if block else None
                chains.append(Chain(group, [], parent, (block + 1) * self._block_tokens[group]))
            chains[-1].keys.append(keys[group][block])
            chains[-1].slots.append(slot)
            before = (group, block)
        return chains

    def _cut(self, chain: Chain, everywhere: set[int]) -> Iterator[Chain]:
        """Cut a chain where blocks that every rank has begin or end."""
        for _, run in groupby(range(len(chain)), key=lambda at: chain.slots[at] in everywhere):
            first, *rest = run
            part = chain.part(first, first + 1 + len(rest), self._block_tokens[chain.group])
            part.slots = chain.slots[first : first + len(part)]
            yield part

    def _block(self, chain: Chain, at: int) -> Chain:
        return chain.part(at, at + 1, self._block_tokens[chain.group])

    def _tokens(self, fetch: FetchEntry) -> float:
        """Return the tokens of a fetch, of which each group brings its share."""
        return sum(len(chain) * self._block_tokens[chain.group] for chain in fetch.chains) / len(self._block_tokens)
