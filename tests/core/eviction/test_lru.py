"""LRU: exactly the order of a plain list."""

from __future__ import annotations

from hypothesis import given

from kvtide.core.eviction import LRU
from tests.contracts.eviction_contract import SLOTS, Pool, Step, clear, play_step, steps


class Naive:
    """A list, oldest first. Pinned slots are passed over, and are young again once they are released."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.order: list[int] = []
        self.passed_over: set[int] = set()

    def touch(self, chain: list[int]) -> None:
        """Move to the young end, the head last, what is not passed over."""
        for slot in reversed(chain):
            if slot not in self.passed_over:
                if slot in self.order:
                    self.order.remove(slot)
                self.order.append(slot)

    def release(self, slot: int) -> None:
        if slot in self.passed_over:
            self.passed_over.remove(slot)
            self.order.append(slot)

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        while self.order and len(victims) < count:
            slot = self.order.pop(0)
            if self.pool.pins[slot]:
                self.passed_over.add(slot)
            else:
                victims.append(slot)
        return victims


def follow(pool: Pool, naive: Naive, step: Step) -> None:
    """Do one step to both and compare the victims."""
    what, which, size = step
    before = dict(pool.parent)
    pins = list(pool.pins)
    cached = sorted(before)
    victims = naive.evict(size) if what == "evict" else []
    assert play_step(pool, what, which, size) == victims
    if len(pool.parent) > len(before):
        naive.touch([slot for slot in pool.parent if slot not in before])  # in the order of the chain
    elif before and not pool.parent and what == "clear":
        naive.order.clear()
        naive.passed_over.clear()
    elif what == "use" and cached:
        naive.touch(pool.branch(cached[which % len(cached)]))
    elif what == "unpin":
        for slot in cached:
            if pins[slot] and not pool.pins[slot]:
                naive.release(slot)


@given(sequence=steps)
def test_victims_come_in_the_order_of_a_plain_list(sequence: list[Step]) -> None:
    pool = Pool(LRU)
    naive = Naive(pool)
    for step in sequence:
        follow(pool, naive, step)
    assert pool.evict(SLOTS) == naive.evict(SLOTS)


def test_prefixes_do_not_matter() -> None:
    pool = Pool(LRU)
    parent = pool.add(2)
    child = pool.add(2, parent=parent[-1])
    assert pool.evict(SLOTS) == parent[::-1] + child[::-1]


def test_a_use_renews_a_whole_chain_with_its_head_last() -> None:
    pool = Pool(LRU)
    first, second = pool.add(3), pool.add(2)
    pool.use(first[:2])
    assert pool.evict(SLOTS) == [first[2], *second[::-1], first[1], first[0]]


def test_what_was_pinned_when_its_turn_came_is_young_after_its_release() -> None:
    pool = Pool(LRU)
    first, second = pool.add(2), pool.add(2)
    pool.pin(first)
    assert pool.evict(1) == [second[1]]
    pool.unpin(first)
    assert pool.evict(SLOTS) == [second[0], first[1], first[0]]


def test_a_pinned_slot_that_was_passed_over_can_be_used_and_cleared() -> None:
    pool = Pool(LRU)
    chain = pool.add(2)
    pool.pin(chain)
    pool.evict(2)
    pool.use(chain)
    assert pool.evict(2) == []
    clear(pool)
    again = pool.add(2)
    assert pool.evict(SLOTS) == again[::-1]
