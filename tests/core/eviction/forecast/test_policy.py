"""Forecast: it learns who comes back, keeps whole prefixes, and its books are in order."""

from __future__ import annotations

import pytest
from hypothesis import given

from kvtide.core.eviction import NO_PARENT, Forecast
from kvtide.core.eviction.forecast.kinds import LAST_BLOCK, LEFT_BEHIND, is_shared, kind_of_shared, kind_of_turn
from tests.contracts.eviction_contract import BLOCK_TOKENS, SLOTS, Pool, Step, play_step, steps


def policy_of(pool: Pool) -> Forecast:
    assert isinstance(pool.policy, Forecast)
    return pool.policy


def kind_of(pool: Pool, slot: int) -> int:
    holders = policy_of(pool)._holders
    return holders.visits.kind[holders.row_of(slot)]


def end(pool: Pool, chain: list[int]) -> None:
    pool.policy.renew(chain, (pool.depth[chain[0]] + 1) * BLOCK_TOKENS, BLOCK_TOKENS)


def check_books(pool: Pool) -> None:
    """Each visit holds one unbroken stretch that ends with its tip, and what it holds is what it counts."""
    holders = policy_of(pool)._holders
    held: dict[int, list[int]] = {}
    for slot in pool.parent:
        held.setdefault(holders.visit_of[slot], []).append(slot)
    for visit, slots in held.items():
        row = visit % holders.visits.size
        assert holders.visits.cached[row] == len(slots)
        slot = holders.visits.tip[row]
        for _ in slots:
            assert holders.visit_of[slot] == visit
            slot = policy_of(pool)._parent[slot]
    for trace, visit in holders._by_trace.items():
        assert holders.visits.trace[visit % holders.visits.size] == trace


@given(sequence=steps)
def test_whatever_happens_the_books_are_in_order_and_prefixes_are_whole(sequence: list[Step]) -> None:
    keys = [b"%d" % (slot % 7) for slot in range(SLOTS)]
    pool = Pool(Forecast, names=keys)
    for what, which, size in sequence:
        if what == "tick" and pool.parent:  # a request ends
            slot = sorted(pool.parent)[which % len(pool.parent)]
            end(pool, pool.branch(slot))
        for victim in play_step(pool, what, which, size):
            assert victim not in pool.parent.values(), "a block was evicted that a cached one continues"
        check_books(pool)


def test_a_request_that_goes_on_is_one_visit_and_the_next_turn_another() -> None:
    pool = Pool(Forecast)
    first = pool.add(3)
    more = pool.add(2, parent=first[-1])
    end(pool, first + more)
    assert kind_of(pool, first[0]) == kind_of_turn(0, soon=False)
    assert kind_of(pool, more[-1]) == LAST_BLOCK
    pool.use(first + more[:1])
    added = pool.add(2, parent=more[0])
    end(pool, first + more[:1] + added)
    assert kind_of(pool, first[0]) == kind_of_turn(1, soon=True)
    assert kind_of(pool, added[0]) == kind_of_turn(1, soon=True)


def test_what_a_conversation_did_not_go_on_from_is_left_behind() -> None:
    pool = Pool(Forecast)
    chain = pool.add(6)
    end(pool, chain)
    pool.use(chain[:3])
    assert kind_of(pool, chain[2]) == kind_of_turn(1, soon=True)
    assert kind_of(pool, chain[3]) == LEFT_BEHIND


@pytest.mark.parametrize(("between", "soon"), [(4 * SLOTS, True), (4 * SLOTS + 1, False)])
def test_soon_is_within_four_times_the_size_of_the_pool(between: int, soon: bool) -> None:
    pool = Pool(Forecast)
    other, chain = pool.add(1), pool.add(3)
    end(pool, chain)
    for _ in range(between - len(chain)):
        pool.use(other)
    pool.use(chain)
    assert kind_of(pool, chain[0]) == kind_of_turn(1, soon=soon)


def test_a_turn_that_adds_more_than_it_found_is_told_apart() -> None:
    pool = Pool(Forecast)
    chain = pool.add(4)
    end(pool, chain)
    pool.use(chain[:3])
    added = pool.add(2, parent=chain[2])
    assert kind_of(pool, added[0]) == kind_of_turn(1, soon=True)
    more = pool.add(2, parent=added[-1])
    end(pool, chain[:3] + added + more)
    assert kind_of(pool, chain[0]) == kind_of_turn(1, soon=True, diverged=True)
    assert kind_of_turn(2, soon=True, diverged=True) == kind_of_turn(3, soon=False, diverged=True)
    assert kind_of_turn(0, soon=False, diverged=True) == kind_of_turn(0, soon=False)


def test_what_was_evicted_and_comes_back_is_not_taken_for_new() -> None:
    keys = [b""] * SLOTS
    pool = Pool(Forecast, names=keys)
    names = [b"%d" % number for number in range(6)]
    for slot, name in zip(pool.free, names, strict=False):
        keys[slot] = name
    end(pool, pool.add(4))
    assert len(pool.evict(4)) == 4
    for slot, name in zip(pool.free, names, strict=False):
        keys[slot] = name
    again = pool.add(6)
    end(pool, again)
    assert kind_of(pool, again[0]) == kind_of_turn(1, soon=True)


def test_a_beginning_that_several_continue_is_shared_and_held_apart() -> None:
    pool = Pool(Forecast)
    begin = pool.add(2)
    for _ in range(4):
        pool.use(begin)
        added = pool.add(2, parent=begin[-1])
        end(pool, begin + added)
    assert is_shared(kind_of(pool, begin[0]))
    assert kind_of(pool, added[0]) == kind_of_turn(0, soon=False)


def test_a_shared_beginning_that_comes_back_alone_is_shared_and_can_leave() -> None:
    keys = [b"%d" % slot for slot in range(SLOTS)]
    pool = Pool(Forecast, names=keys)
    begin = pool.add(2)
    names = [keys[slot] for slot in begin]
    for _ in range(3):
        pool.use(begin)
        end(pool, begin + pool.add(2, parent=begin[-1]))
    assert pool.evict(SLOTS)[-2:] == begin[::-1]
    keys[:] = [b"new %d" % slot for slot in range(SLOTS)]
    for slot, name in zip(pool.free, names, strict=False):
        keys[slot] = name
    again = pool.add(2)
    assert is_shared(kind_of(pool, again[0]))
    assert pool.evict(SLOTS) == again[::-1]


def test_shared_beginnings_are_told_apart_by_use() -> None:
    assert len({kind_of_shared(uses) for uses in (1, 4, 16)}) == 3
    assert kind_of_shared(1) == kind_of_shared(3)
    assert kind_of_shared(255) == kind_of_shared(16)


def test_a_conversation_is_recognised_after_it_was_evicted() -> None:
    keys = [b""] * SLOTS
    pool = Pool(Forecast, names=keys)

    def store(names: list[bytes]) -> list[int]:
        for slot, name in zip(pool.free, names, strict=False):
            keys[slot] = name
        chain = pool.add(len(names))
        end(pool, chain)
        return chain

    store([b"a", b"b", b"c"])
    assert len(pool.evict(3)) == 3
    again = store([b"a", b"b", b"c", b"d"])
    assert kind_of(pool, again[0]) == kind_of_turn(1, soon=True)


def test_it_learns_that_later_turns_come_back_and_first_ones_do_not() -> None:
    """Half of the traffic are single requests, the other half conversations that always go on."""
    slots = 64
    keys = [b""] * slots
    pool = Pool(Forecast, slots, names=keys)
    slot_of: dict[bytes, int] = {}
    hits: list[float] = []

    def serve(names: list[bytes]) -> None:
        chain = []
        for name in names:
            if name not in slot_of:
                break
            chain.append(slot_of[name])
        hits.append(len(chain) / len(names))
        if chain:
            pool.use(chain)
        pool.pin(chain[-1:])
        for slot in pool.evict(max(0, len(names) - len(chain) - len(pool.free))):
            del slot_of[keys[slot]]
        pool.unpin(chain[-1:])
        for slot, name in zip(pool.free, names[len(chain) :], strict=False):
            keys[slot], slot_of[name] = name, slot
        chain += pool.add(len(names) - len(chain), parent=chain[-1] if chain else NO_PARENT)
        end(pool, chain)

    conversations = {number: [b"c%d-0" % number] for number in range(4)}
    for turn in range(1, 400):
        serve([b"once%d-%d" % (turn, index) for index in range(12)])
        serve([b"more%d-%d" % (turn, index) for index in range(12)])
        talk = conversations[turn % 4]
        talk.append(b"c%d-%d" % (turn % 4, turn))
        if len(talk) > 8:
            talk[:] = [b"c%d-new%d" % (turn % 4, turn), b"c%d-new%d-1" % (turn % 4, turn)]
        serve(list(talk))
    late = hits[-300:][2::3]
    assert sum(late) > 0.45 * len(late)  # 0.7 is the most that is possible; LRU has nothing


def test_after_clear_nothing_is_remembered() -> None:
    pool = Pool(Forecast)
    end(pool, pool.add(4))
    pool.evict(4)
    pool.policy.clear()
    assert not policy_of(pool)._holders._by_trace


def test_visits_that_hold_blocks_survive_the_ring() -> None:
    pool = Pool(Forecast)
    kept = pool.add(3)
    end(pool, kept)
    pool.pin(kept)
    for _ in range(policy_of(pool)._holders.visits.size + 50):
        end(pool, pool.add(2))
        pool.evict(2)
    check_books(pool)
    pool.unpin(kept)
    assert sorted(pool.evict(SLOTS)) == sorted(kept)


def test_what_is_used_until_the_ring_comes_round_can_leave() -> None:
    pool = Pool(Forecast)
    chain = pool.add(3)
    for _ in range(policy_of(pool)._holders.visits.size + 50):
        pool.use(chain)
    assert pool.evict(SLOTS) == chain[::-1]


@pytest.mark.parametrize(("idle", "given_up"), [(3, False), (4, True)])
def test_a_request_that_was_not_active_for_a_sixteenth_of_the_pool_has_to_leave_like_others(
    idle: int, given_up: bool
) -> None:
    pool = Pool(Forecast, slots=64)
    running, other = pool.add(2), pool.add(idle)
    end(pool, other)
    assert pool.evict(2) == (running if given_up else other[-2:])[::-1]


def test_what_was_to_leave_next_stays_when_it_is_pinned_meanwhile() -> None:
    pool = Pool(Forecast)
    first = pool.add(2)
    end(pool, first)
    pool.pin(first[:1])
    second = pool.add(1)
    end(pool, second)
    assert pool.evict(1) == first[1:]
    pool.pin(second)
    assert pool.evict(SLOTS) == []


def test_blocks_that_do_not_follow_one_another_are_not_in_use() -> None:
    pool = Pool(Forecast)
    first, second = pool.add(2), pool.add(2)
    for mixed_up in ([*first, *second], first[::-1], [*first, *first]):
        for tell in (pool.policy.use, pool.policy.renew):
            tell(mixed_up, BLOCK_TOKENS, BLOCK_TOKENS)
            check_books(pool)
    assert kind_of(pool, first[0]) == kind_of(pool, second[0]) == kind_of_turn(0, soon=False, diverged=True)


def test_a_child_that_also_comes_before_its_parent_is_not_linked() -> None:
    pool = Pool(Forecast)
    first, second = pool.add(2)
    for child in (first, second):
        pool.policy.adopt(child, second)
    assert pool.policy.ancestors(second, 3) is None
    check_books(pool)
