"""The host pool: which key is in which slot, what is pinned, what can be had.

A slot is in one of four states:

    free ── assign ──► writing ── commit ──► cached ── evicted ────────────────► free
                          │                    └── detach ──► leaving ── free ──► free
                          └────── abandon ──────────────────────────────────────► free

Keys of slots being written are known here too, so one key is written by one transfer at a time (I7), but only
cached ones are visible to requests (I3). A slot that is leaving is read once more, to sink below host memory, and
has no key any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvtide.core.chain import Chain
from kvtide.core.events import Cleared, EventStream, Removed, Stored
from kvtide.core.eviction import NO_PARENT, POLICIES
from kvtide.core.groups import Group, Key
from kvtide.core.messages import Name
from kvtide.core.metrics import Metrics
from kvtide.core.orphans import Orphans


class _NoKey(bytes):
    """For one object that is none of the keys that people give."""


NO_KEY = _NoKey()
"""In place of the key of a slot that is not cached."""


class HostPool:
    """Slots with keys, pins and an eviction order. Per-slot data is in flat lists: a million slots are usual."""

    def __init__(
        self,
        slots: int,
        groups: Sequence[Group],
        policy: str,
        events: EventStream,
        metrics: Metrics,
        *,
        slots_ready: int | None = None,
    ) -> None:
        """`slots` is the most there will be; `slots_ready` (all) can be used at once, and `grow` adds to them."""
        self.slots_max = slots
        self.slots = 0
        self._block_tokens = [group.block_tokens for group in groups]
        self._slot_of: list[dict[Key, int]] = [{} for _ in groups]
        self._key: list[Key] = [NO_KEY] * slots
        """What each cached slot holds. NO_KEY for the others: so it also says which ones are cached."""
        self._group = bytearray(slots)
        self._pins = [0] * slots
        self._free: list[int] = []
        self._num_cached = 0
        self._evicts_ahead = False
        """Somebody has wanted more slots than were free."""
        self._policy = POLICIES[policy](slots, self._pins, self._key)
        self.evicting: Callable[[Sequence[int]], None] | None = None
        """Told of slots that are evicted at once, because somebody needs them."""
        self._orphans = Orphans()
        self._events = events
        self._metrics = metrics
        self.grow(slots if slots_ready is None else slots_ready)

    # ------------------------------------------------------------------ looking

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Slots whose key is visible, pinned or not."""
        return self._num_cached

    @property
    def num_writing(self) -> int:
        """Slots that are taken and not visible: being written, or about to leave."""
        return self.slots - len(self._free) - self._num_cached

    def num_pinned(self) -> int:
        """Slots with at least one pin. Counted by looking at all of them: for gauges and tests."""
        return self.slots_max - self._pins.count(0)

    def has(self, group: int, key: Key) -> bool:
        """Whether a key is cached or being written."""
        return key in self._slot_of[group]

    def has_none(self, group: int, keys: Sequence[Key]) -> bool:
        """Whether none of the keys is cached or being written."""
        hash(tuple(keys))  # all at once: lookups in a row then wait for memory together, not one after the other
        return self._slot_of[group].keys().isdisjoint(keys)

    def slot_of(self, group: int, key: Key) -> int | None:
        """Return the slot of a key that is cached or being written."""
        return self._slot_of[group].get(key)

    def slots_of(self, group: int, keys: Sequence[Key]) -> list[int | None]:
        """Return what `slot_of` says of each key."""
        return list(map(self._slot_of[group].get, keys))

    def is_cached(self, group: int, key: Key) -> bool:
        """Whether a key is visible: every rank has every byte of it."""
        return self.cached_slot(group, key) is not None

    def cached_slot(self, group: int, key: Key) -> int | None:
        """Return the slot of a key, if it is visible."""
        slot = self.slot_of(group, key)
        return slot if slot is not None and self._key[slot] is not NO_KEY else None

    def leading_slots(self, group: int, keys: Sequence[Key]) -> list[int]:
        """Return the slots of the first keys, up to the first one that is not cached.

        `keys` are consecutive blocks of one prefix. Looking a key up costs several cache misses in a large pool, so
        the last cached key is searched for by halving, and the slots before it are asked of the eviction policy, which
        keeps prefixes whole. Only where it does not, every key is looked up.
        """
        count, last = self._search_leading(group, keys)
        slots = self._policy.ancestors(last, count) if count else []
        if slots is not None:
            return slots
        slots = []
        for slot in map(self._slot_of[group].get, keys):
            if slot is None or self._key[slot] is NO_KEY:
                break
            slots.append(slot)
        return slots

    def _search_leading(self, group: int, keys: Sequence[Key]) -> tuple[int, int]:
        """Return how many leading keys are cached, and the last one's slot, if those before a cached one are too."""
        last = self.cached_slot(group, keys[0]) if keys else None
        if last is None:
            return 0, NO_PARENT
        there, missing = 0, len(keys)
        probe = missing - 1  # usually all of them are there
        while missing - there > 1:
            slot = self.cached_slot(group, keys[probe])
            if slot is None:
                missing = probe
            else:
                there, last = probe, slot
            probe = (there + missing) // 2
        return there + 1, last

    def grow(self, slots: int) -> None:
        """Let the first `slots` slots be used. A pool does not shrink."""
        slots = max(self.slots, min(slots, self.slots_max))
        self._free[:0] = range(slots - 1, self.slots - 1, -1)
        self.slots = slots

    # ------------------------------------------------------------------ pins

    def pin(self, slots: Sequence[int]) -> None:
        """Keep slots from being evicted."""
        pins = self._pins
        for slot in slots:
            pins[slot] += 1

    def unpin(self, slots: Sequence[int]) -> None:
        """Return pins. A slot that was forgotten meanwhile (reset) is free once nobody reads it any more."""
        pins, keys = self._pins, self._key
        released = []
        for slot in slots:
            left = pins[slot] = pins[slot] - 1
            if not left:
                if keys[slot] is not NO_KEY:
                    released.append(slot)
                else:
                    self._free.append(slot)
        self._policy.release(released)

    def use(self, group: int, slots: Sequence[int], end_tokens: int) -> None:
        """Tell that cached slots of one prefix were used; `end_tokens` is where the first one ends."""
        self._policy.use(slots, end_tokens, self._block_tokens[group])

    def use_keys(self, group: int, keys: Sequence[Key], end_tokens: int) -> Sequence[int | None]:
        """Tell that a prefix was in use until now, as far as it is cached; return each key's slot, None if unknown.

        `end_tokens` is where the first key ends.
        """
        leading, rest = self.find(group, keys)
        self.renew(group, leading, rest, end_tokens)
        return [*leading, *rest]

    def find(self, group: int, keys: Sequence[Key]) -> tuple[list[int], list[int | None]]:
        """Return the slots of the first keys of a prefix, which are cached, and what `slot_of` says of the others."""
        leading = self.leading_slots(group, keys)
        return leading, self.slots_of(group, keys[len(leading) :])

    def renew(self, group: int, leading: Sequence[int], rest: Sequence[int | None], end_tokens: int) -> None:
        """Tell that a prefix was in use until now, of which `find` has found this."""
        block_tokens = self._block_tokens[group]
        run = [*leading]
        for index, slot in enumerate((*rest, None), len(leading)):
            if slot is not None and self._key[slot] is not NO_KEY:
                run.append(slot)
            elif run:
                self._policy.renew(run, end_tokens + (index - len(run)) * block_tokens, block_tokens)
                run = []

    def tick(self) -> None:
        """Let time pass for the eviction policy."""
        self._policy.tick()

    # ------------------------------------------------------------------ life of a slot

    def take(self, count: int) -> list[int]:
        """Return up to `count` slots to write to, evicting what the policy gives up."""
        if len(self._free) < count:
            self._evicts_ahead = True
            self._evict(count - len(self._free))
        first = max(0, len(self._free) - count)
        slots = self._free[first:]
        del self._free[first:]
        slots.reverse()
        return slots

    def assign(self, chain: Chain) -> None:
        """Let the slots of a chain be written. Its keys must be unknown so far."""
        self._slot_of[chain.group].update(zip(chain.keys, chain.slots, strict=True))
        if len(self._slot_of) > 1:  # otherwise there is nothing to tell apart
            groups, group = self._group, chain.group
            for slot in chain.slots:
                groups[slot] = group

    def commit(self, chain: Chain) -> None:
        """Make a chain visible: every rank has every byte of it."""
        keys = self._key
        for slot, key in zip(chain.slots, chain.keys, strict=True):
            keys[slot] = key
        self._num_cached += len(chain.slots)
        parent = self.cached_slot(chain.group, chain.parent) if chain.parent is not None else None
        continues = NO_PARENT if parent is None else parent
        self._policy.add(chain.slots, continues, chain.end_tokens, self._block_tokens[chain.group])
        if self._orphans:
            self._adopt(chain)
        if parent is None and chain.parent is not None:
            self._orphans.add(chain.slots[0], chain.group, chain.parent)
        if self._events.enabled:
            self._events.add(Stored(chain.group, tuple(chain.keys), chain.parent))

    def abandon(self, chain: Chain) -> None:
        """Free the slots of a chain whose store came to nothing."""
        slot_of = self._slot_of[chain.group]
        for slot, key in zip(chain.slots, chain.keys, strict=True):
            if slot_of.get(key) == slot:  # not so after a reset
                del slot_of[key]
        self._free.extend(chain.slots)

    def clear(self) -> None:
        """Forget every key. Slots with copies in flight are freed when those end: `unpin`, `abandon`."""
        for slot_of in self._slot_of:
            for slot in slot_of.values():
                if self._key[slot] is not NO_KEY:
                    self._key[slot] = NO_KEY
                    if not self._pins[slot]:
                        self._free.append(slot)
            slot_of.clear()
        self._num_cached = 0
        self._evicts_ahead = False
        self._policy.clear()
        self._orphans.clear()
        self._events.add(Cleared())

    def name(self, slot: int) -> Name:
        """Return the group and key of a cached slot."""
        return self._group[slot], self._key[slot]

    def holds(self, slot: int, name: Name) -> bool:
        """Whether a slot is cached and holds this block."""
        return (self._group[slot], self._key[slot]) == name

    def detach(self, count: int) -> dict[int, Name]:
        """Evict up to `count` slots whose bytes are still needed: they are the caller's until it frees them."""
        victims = self._policy.evict(count)
        names = {slot: self.name(slot) for slot in victims}
        self._forget(victims)
        return names

    def free(self, slots: Sequence[int]) -> None:
        """Take detached slots back."""
        self._free.extend(slots)

    def evict_ahead(self, spare: int, at_most: int) -> bool:
        """Evict up to `at_most` slots, until `spare` are free. Returns whether there is more to do.

        Nothing leaves a pool that still grows, or that has had room for all so far.
        """
        lacking = min(spare - len(self._free), at_most)
        if lacking <= 0 or not self._evicts_ahead or self.slots < self.slots_max:
            return False
        self._evicts_ahead = self._evict(lacking) == lacking  # else all is in use, and looking again would be in vain
        return self._evicts_ahead and len(self._free) < spare

    def _evict(self, count: int) -> int:
        victims = self._policy.evict(count)
        self._forget(victims)
        self._free.extend(victims)  # tails first, and taken from the end: runs of slots stay in order
        if self.evicting is not None:
            self.evicting(victims)
        return len(victims)

    def _forget(self, victims: Sequence[int]) -> None:
        """Remove what the policy gave up from the index."""
        keys = self._key
        for group, slots in self._by_group(victims).items():
            if self._events.enabled and slots:
                self._events.add(Removed(group, tuple([keys[slot] for slot in slots])))
            slot_of = self._slot_of[group]
            for slot in slots:
                del slot_of[keys[slot]]
                keys[slot] = NO_KEY
        if self._orphans:
            for slot in victims:
                self._orphans.drop(slot)
        self._num_cached -= len(victims)
        self._metrics.evicted_blocks += len(victims)

    def _adopt(self, chain: Chain) -> None:
        for slot, key in zip(chain.slots, chain.keys, strict=True):
            for child in self._orphans.take(chain.group, key):
                self._policy.adopt(child, slot)

    def _by_group(self, slots: Sequence[int]) -> Mapping[int, Sequence[int]]:
        if len(self._slot_of) == 1:  # there is nothing to tell apart
            return {0: slots}
        by_group: dict[int, list[int]] = {}
        for slot in slots:
            by_group.setdefault(self._group[slot], []).append(slot)
        return by_group
