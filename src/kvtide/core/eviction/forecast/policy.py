"""For KV traffic: the conversation with the least expected hits per slot and time leaves.

What a serving cache knows and a general cache does not: blocks come and go as conversations. So the unit here is a
*visit*, the blocks that one request was the last to touch. Visits are of few kinds (`kinds`): by the turn
of the conversation (one that came back twice is likely to come back again), shared beginnings, the last block of a
prompt, and what was left behind when a conversation went on elsewhere. When each kind comes back, and whether, is
learned while serving, from evicted blocks too (`return_index`); there is nothing to tune.

A prefix without its beginning is worthless, so only leaves of the tree of cached prefixes are evicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.eviction.base import NO_PARENT, EvictionPolicy, follow_parents, is_below, no_parents
from kvtide.core.eviction.forecast.holders import Holders
from kvtide.core.eviction.forecast.kinds import KINDS, RUNNING, is_last_block, is_shared
from kvtide.core.eviction.forecast.visits import NOTHING
from kvtide.core.groups import Key

SHARED_BRANCHES = 2
"""A block with this many continuations is a shared beginning, not part of a conversation."""
NO_WORTH = float("inf")
"""Of a kind that has nothing to evict."""


class Forecast(EvictionPolicy):
    """Queues of visits by kind, oldest first, each with an index by age. The lowest index is at one of their ends."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        super().__init__(slots, pins, keys)
        self._parent = no_parents(slots)
        self._children = [0] * slots
        self._branches = [0] * slots
        """How often a block was continued since it is cached."""
        self._holders = Holders(slots, self._parent, self._children, pins)
        self._patience = int(self._holders.index.edges[1])
        """A request that was not active for this long, in blocks touched, is taken to have ended."""
        self._candidates = [NOTHING] * KINDS
        self._worths = [NO_WORTH] * KINDS
        """By kind: the visit that would leave next, and its index when that was computed."""
        self._worths_until = 0

    # ------------------------------------------------------------------ what happens to blocks

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Let the request that holds `parent` go on, or begin a visit. What was shared before is shared again."""
        holders = self._holders
        holders.now += len(chain)
        recalled = holders.recall(self.keys, chain)
        fresh = max(0, len(chain) - recalled.blocks)
        if recalled.shared_blocks:
            shared = holders.begin_shared(recalled.uses)
            parent = self._link(chain[: recalled.shared_blocks], parent, shared)
            self._branches[parent] = SHARED_BRANCHES
            holders.wait(shared)
            chain = chain[recalled.shared_blocks :]
            if not chain:
                return
        visit = self._visit_to_extend(parent)
        if visit == NOTHING:
            visit = holders.begin()
            self._follow_parent(visit, parent)
        holders.follow(visit, recalled.turn, recalled.born)
        holders.grow(visit, end_tokens // block_tokens - 1 + recalled.blocks, fresh)
        self._link(chain, parent, visit)
        holders.run(visit)

    def _link(self, chain: Sequence[int], parent: int, visit: int) -> int:
        """Append new blocks to a visit; return the last one."""
        parents, children, branches, visit_of = self._parent, self._children, self._branches, self._holders.visit_of
        if parent != NO_PARENT:
            children[parent] += 1
            branches[parent] += 1
        for slot in chain:
            parents[slot] = parent
            children[slot] = branches[slot] = 1
            visit_of[slot] = visit
            parent = slot
        children[parent] = branches[parent] = 0
        visits = self._holders.visits
        row = visit % visits.size
        visits.cached[row] += len(chain)
        visits.tip[row] = parent
        return parent

    def adopt(self, child: int, parent: int) -> None:
        """Link a child that came before its parent. An engine that mixes keys up may say that it also comes before."""
        if is_below(self._parent, parent, child):
            return
        self._parent[child] = parent
        self._children[parent] += 1
        self._branches[parent] += 1

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Begin a visit that takes the chain over, and one for the shared beginning of it."""
        if not self._is_prefix(chain):
            return
        holders = self._holders
        holders.now += len(chain)
        own = self._end_of_shared(chain, len(chain))
        if own:
            holders.share(chain[:own])
        if own < len(chain):
            visit, row = holders.begin(), holders.row_of(chain[-1])
            holders.follow(visit, self._next_turn(row), holders.visits.born[row])
            holders.take(chain[own:], visit)
            holders.run(visit)

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """End the visit of a request."""
        if not self._is_prefix(chain):
            return
        holders = self._holders
        if not holders.visits.running[holders.row_of(chain[-1])]:
            self.use(chain, end_tokens, block_tokens)  # the device had all of it
        visit, held = holders.visit_of[chain[-1]], len(chain)
        while held and holders.visit_of[chain[held - 1]] == visit:
            held -= 1
        own = self._end_of_shared(chain, held)
        holders.take(chain[own:held], visit, in_front=True)  # the device had this part
        holders.finish(visit)

    def _is_prefix(self, chain: Sequence[int]) -> bool:
        """Whether blocks follow one another. Keys come from engines, also from one that has mixed them up."""
        return self.ancestors(chain[-1], len(chain)) == [*chain]

    def release(self, slots: Sequence[int]) -> None:
        """Queue those that became evictable."""
        for slot in slots:
            if not self._children[slot]:
                self._offer(slot)

    def ancestors(self, slot: int, count: int) -> list[int] | None:
        """Follow the parents."""
        return follow_parents(self._parent, slot, count)

    def clear(self) -> None:
        """Forget all slots, and what was learned: other weights, other answers."""
        self._holders = Holders(self.slots, self._parent, self._children, self.pins)
        self._worths_until = 0

    def _end_of_shared(self, chain: Sequence[int], end: int) -> int:
        """Return how many of the first `end` blocks of a chain are a shared beginning."""
        while end and self._branches[chain[end - 1]] < SHARED_BRANCHES:
            end -= 1
        return end

    def _visit_to_extend(self, parent: int) -> int:
        """Return the visit of the request that continues its own blocks behind `parent`, or NOTHING."""
        if parent == NO_PARENT:
            return NOTHING
        visits, row = self._holders.visits, self._holders.row_of(parent)
        return self._holders.visit_of[parent] if visits.running[row] and visits.tip[row] == parent else NOTHING

    def _follow_parent(self, visit: int, parent: int) -> None:
        """Let a visit be the turn of a request that continues `parent` without having loaded it.

        That is the next one, the device had it; or the same one, whose last blocks are stored when it has ended.
        """
        if parent == NO_PARENT or self._branches[parent] >= SHARED_BRANCHES:
            return
        visits, row = self._holders.visits, self._holders.row_of(parent)
        ended_just_now = visits.born[row] > self._holders.now - self._patience
        turn = visits.turn[row] if ended_just_now else self._next_turn(row)
        self._holders.follow(visit, turn, visits.born[row])

    def _next_turn(self, row: int) -> int:
        """Return the turn that follows a visit."""
        visits = self._holders.visits
        return 0 if is_shared(visits.kind[row]) else visits.turn[row] + 1

    # ------------------------------------------------------------------ eviction

    def evict(self, count: int) -> list[int]:
        """Take leaves, conversation by conversation, lowest index first."""
        victims: list[int] = []
        self._stop_waiting()
        while len(victims) < count:
            visit = self._next_victim()
            if visit == NOTHING:
                break
            self._evict_from(visit, count - len(victims), victims)
        return victims

    def _stop_waiting(self) -> None:
        """Queue by kind what runs but was not active for long."""
        holders, visits = self._holders, self._holders.visits
        while True:
            visit = holders.queues.oldest(RUNNING)
            row = visit % visits.size
            if visit == NOTHING or visits.born[row] > holders.now - self._patience:
                return
            holders.queues.put(visit, visits.kind[row])

    def _next_victim(self) -> int:
        """Return the visit with the lowest index, or the first that runs if there is no other.

        Values change slowly, so that of one kind is computed again only when its queue has changed or time has passed.
        """
        queues, now = self._holders.queues, self._holders.now
        changed, worths = queues.changed, self._worths
        if now >= self._worths_until:
            self._worths_until = now + self._patience // 4 + 1
            changed[:KINDS] = b"\1" * KINDS
        while True:
            while (kind := changed.find(1, 0, KINDS)) >= 0:
                changed[kind] = 0
                self._candidates[kind], worths[kind] = self._candidate(kind)
            lowest = min(worths)
            if lowest == NO_WORTH:
                return queues.oldest(RUNNING)
            kind = worths.index(lowest)
            changed[kind] = 1  # it will be evicted, or is gone already
            if queues.can_leave(self._candidates[kind], kind):
                return self._candidates[kind]

    def _candidate(self, kind: int) -> tuple[int, float]:
        """Return the visit of a kind with the lowest index: the oldest, or the youngest if too few come back."""
        holders = self._holders
        oldest = holders.queues.oldest(kind)
        if oldest == NOTHING:
            return NOTHING, NO_WORTH
        worth = self._worth(kind, oldest)
        if holders.index.value_at_birth(kind) < worth:
            youngest = holders.queues.youngest(kind)
            worth_of_youngest = self._worth(kind, youngest)
            if worth_of_youngest < worth:
                return youngest, worth_of_youngest
        return oldest, worth

    def _worth(self, kind: int, visit: int) -> float:
        """Return the index of a visit.

        The last block of a prompt is worth at most what those before it are, without which it is never found: else it
        would keep a conversation that has ended, because those of others come back.
        """
        holders = self._holders
        index, now, visits = holders.index, holders.now, holders.visits
        row = visit % visits.size
        worth = index.value(kind, now - visits.born[row])
        if is_last_block(kind):
            before = holders.row_of(self._parent[visits.tip[row]])
            worth = min(worth, index.value(visits.kind[before], now - visits.born[before]))
        return worth

    def _evict_from(self, visit: int, count: int, victims: list[int]) -> None:
        """Evict up to `count` blocks of a visit, from its tip on."""
        visits, parents, children, pins = self._holders.visits, self._parent, self._children, self.pins
        row = visit % visits.size
        slot, held, before = visits.tip[row], visits.cached[row], len(victims)
        end = before + min(count, held)
        while len(victims) < end:
            victims.append(slot)
            slot = parents[slot]
            if slot != NO_PARENT:
                children[slot] -= 1
                if children[slot] or pins[slot]:
                    break
        evicted = len(victims) - before
        self._holders.lose_to_eviction(visit, evicted, slot, self.keys[victims[-1]])
        if evicted == held and slot != NO_PARENT and not children[slot] and not pins[slot]:
            self._offer(slot)

    def _offer(self, slot: int) -> None:
        """Queue the visit whose last block became evictable."""
        visits, row = self._holders.visits, self._holders.row_of(slot)
        if visits.queue[row] == self._holders.queues.nowhere:
            self._holders.queues.put(self._holders.visit_of[slot], RUNNING if visits.running[row] else visits.kind[row])
