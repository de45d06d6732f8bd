"""Sinks: which blocks of the host go down to the tiers below, and when.

Written *through*, a block sinks once it is on the host, or once it has been of use; it stays on the host meanwhile.
Written *on evict*, it sinks when its time on the host is over: a few slots are kept free, and what is evicted to that
end has left the index already but keeps its slot until its bytes are below. Nobody ever waits for a block to sink:
when slots are needed at once they are taken, and what had no time to sink is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from kvtide.core.chain import Chain
from kvtide.core.config import Admission, BelowConfig
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Ledger, SinkEntry
from kvtide.core.messages import Name
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotSunk

SINK_BLOCKS_MAX = 64
"""Blocks of one errand."""
AHEAD_BLOCKS_MAX = 512
"""Most slots that are kept free so that what is evicted has time to sink."""

DONE_THROUGH, DONE_LEAVING, USED = 1, 2, 4
"""Marks of a slot: below, or counted as lost, as far as tiers written through go; the same for tiers written on evict;
loaded since it was stored.
"""


class Sinks:
    """Queues blocks, keeps them where they are until every rank has answered, and counts what is lost."""

    def __init__(self, config: BelowConfig | None, host: HostPool, ledger: Ledger, metrics: Metrics) -> None:
        self._config = config or BelowConfig()
        self._host = host
        self._ledger = ledger
        self._metrics = metrics
        self._queue: deque[tuple[int, Name, bool]] = deque()
        """Slot, name, and whether it was of use. At most as many as there are slots: what waits is not pinned,
        so the rest of a longer queue would be evicted before its turn comes.
        """
        self._last: list[tuple[int, Name, bool]] = []
        """What leaves at the end of all (`drain`): taken from the end."""
        self._draining = False
        self._in_flight_blocks = 0
        self._leaving_blocks = 0
        self._marks = bytearray(host.slots_max if config is not None else 0)
        """What is known of the content of each cached slot."""
        if config is not None:
            host.evicting = self._evicted

    @property
    def queue_blocks(self) -> int:
        """Blocks that wait for their turn."""
        return len(self._queue)

    @property
    def left_blocks(self) -> int:
        """Blocks that wait, or sink just now."""
        return len(self._queue) + len(self._last) + self._in_flight_blocks

    def drain(self) -> None:
        """Nothing is stored any more: from now on every block leaves the host that a tier should have then."""
        self._draining = True

    def stored(self, chain: Chain) -> None:
        """A chain is on the host now, and not below as far as is known."""
        if self._marks:
            for slot in chain.slots:
                self._marks[slot] = 0
        if "all" in self._config.through:
            self._enqueue(chain.group, chain.keys, chain.slots, used=False)

    def used(self, slots: Sequence[int]) -> None:
        """Slots were loaded from."""
        config, marks = self._config, self._marks
        if not config.second_use:
            return
        for slot in slots:
            first_time = not marks[slot] & USED
            marks[slot] |= USED
            if first_time and "second-use" in config.through:
                group, key = self._host.name(slot)
                self._enqueue(group, (key,), (slot,), used=True)

    def came_up(self, slots: Sequence[int]) -> None:
        """Slots hold what was fetched from below: it is there."""
        for slot in slots:
            self._marks[slot] = DONE_THROUGH | DONE_LEAVING

    def plan(self) -> list[SinkEntry]:
        """Return what begins to sink now."""
        return [*self._batches(self._from_queue(), leaving=False), *self._batches(self._ahead(), leaving=True)]

    def settle(self, sink: SinkEntry) -> None:
        """Every rank has answered."""
        self._in_flight_blocks -= len(sink.slots)
        if sink.abandoned:
            self._lose(NotSunk.RESET, len(sink.slots))
        else:
            self._metrics.sunk_blocks += len(sink.hits)
            self._lose(NotSunk.FAILED, len(sink.slots) - len(sink.hits))
        if sink.leaving:
            self._leaving_blocks -= len(sink.slots)
            self._host.free(sink.slots)
            return
        self._mark(sink.slots, DONE_THROUGH)
        self._host.unpin(sink.slots)

    def reset(self) -> None:
        """Forget what waits. What was evicted before its turn has been counted."""
        self._lose(NotSunk.RESET, sum(self._host.holds(slot, name) for slot, name, _ in self._queue))
        self._lose(NotSunk.RESET, len(self._last))
        self._host.free([slot for slot, _, _ in self._last])
        self._queue.clear()
        self._last.clear()

    def _evicted(self, slots: Sequence[int]) -> None:
        """Slots were needed at once. What the tiers wanted of them and do not have is lost."""
        self._lose_unsunk(slots, self._config.through, DONE_THROUGH)
        self._lose_unsunk(slots, self._config.on_evict, DONE_LEAVING)

    def _lose_unsunk(self, slots: Sequence[int], write: frozenset[Admission], done: int) -> None:
        if write:
            wanted = 0 if "all" in write else USED
            marks = (self._marks[slot] for slot in slots)
            self._lose(NotSunk.EVICTED, sum(mark & (done | wanted) == wanted for mark in marks))

    def _enqueue(self, group: int, keys: Sequence[bytes], slots: Sequence[int], *, used: bool) -> None:
        room = self._host.slots - len(self._queue)
        self._lose(NotSunk.QUEUE_FULL, len(slots) - room)
        self._mark(slots[room:], DONE_THROUGH)
        for key, slot in zip(keys[:room], slots[:room], strict=True):
            self._queue.append((slot, (group, key), used))

    def _from_queue(self) -> Iterator[tuple[int, Name, bool]]:
        """Take from the queue what is still there and may be pinned now: at most an eighth of the host."""
        room = max(1, self._host.slots // 8) - self._in_flight_blocks
        while self._queue and room > 0:
            slot, name, used = self._queue.popleft()
            if self._host.holds(slot, name):  # otherwise it was evicted, and counted where that happens
                self._host.pin((slot,))
                room -= 1
                yield slot, name, used

    def _ahead(self) -> Iterator[tuple[int, Name, bool]]:
        """Keep some slots free, by letting what is evicted next sink first."""
        host, on_evict = self._host, self._config.on_evict
        target = min(AHEAD_BLOCKS_MAX, max(1, host.slots // 16))
        if self._draining:
            yield from self._leave_all(target - self._leaving_blocks)
        elif on_evict and host.slots > 1:
            yield from self._detach(target - host.num_free - self._leaving_blocks)

    def _leave_all(self, room: int) -> Iterator[tuple[int, Name, bool]]:
        """Let everything leave, so many blocks at a time: what the host would have kept for longest comes first."""
        if self._config.on_evict and not self._queue:  # what waits for tiers written through needs its slot
            self._last += reversed(list(self._detach(self._host.num_cached)))
        while self._last and room > 0:
            room -= 1
            yield self._last.pop()

    def _detach(self, count: int) -> Iterator[tuple[int, Name, bool]]:
        """Evict blocks, and yield those that tiers want and lack, heads first. The slots of the others are free."""
        host, on_evict = self._host, self._config.on_evict
        victims = host.detach(count)
        self._lose_unsunk(list(victims), self._config.through, DONE_THROUGH)  # to tiers that are not written on evict
        clean = []
        for slot, name in reversed(victims.items()):  # heads first: a tail is of no use without
            used = bool(self._marks[slot] & USED)
            if self._marks[slot] & DONE_LEAVING or ("all" not in on_evict and not used):
                clean.append(slot)
            else:
                yield slot, name, used
        host.free(clean[::-1])

    def _batches(self, blocks: Iterable[tuple[int, Name, bool]], *, leaving: bool) -> list[SinkEntry]:
        """Let blocks sink together that are alike in whether they were of use."""
        sinks: list[SinkEntry] = []
        for slot, name, used in blocks:
            if not sinks or len(sinks[-1].slots) == SINK_BLOCKS_MAX or sinks[-1].used != used:
                sinks.append(SinkEntry(self._ledger.next_id(), leaving=leaving, used=used))
            sinks[-1].slots.append(slot)
            sinks[-1].names.append(name)
            self._in_flight_blocks += 1
            self._leaving_blocks += leaving
        return sinks

    def _mark(self, slots: Sequence[int], mark: int) -> None:
        for slot in slots:
            self._marks[slot] |= mark

    def _lose(self, why: NotSunk, blocks: int) -> None:
        if blocks > 0:
            self._metrics.not_sunk[why] += blocks
