"""Queues of visits: in the order of their ages, whatever the order they come in."""

from __future__ import annotations

import random

import pytest

from kvtide.core.eviction.forecast.queues import Queues
from kvtide.core.eviction.forecast.visits import NOTHING, Visits

SIZE = 64


class Waiting:
    """Queues of visits that have one block each, the slot of the same number as their row."""

    def __init__(self) -> None:
        self.visits = Visits(SIZE)
        self.children, self.pins = [0] * SIZE, [0] * SIZE
        self.queues = Queues(2, self.visits, self.children, self.pins)

    def put(self, born: int, queue: int = 0) -> int:
        visit = self.visits.open(born, queue, 0)
        self.visits.tip[visit % SIZE] = visit % SIZE
        self.queues.put(visit, queue)
        return visit

    def leave(self, visit: int) -> int:
        self.visits.queue[visit % SIZE] = self.queues.nowhere
        return visit


@pytest.mark.parametrize("seed", range(30))
def test_the_oldest_comes_first_and_of_equals_the_first_that_came(seed: int) -> None:
    draw, waiting = random.Random(seed), Waiting()
    waiting.visits.next = draw.randrange(SIZE)  # the ring will come round, but not to one that waits
    plain: list[tuple[int, int]] = []
    for _ in range(SIZE):
        if draw.random() < 0.6:
            born = draw.randrange(12)
            plain.append((born, waiting.put(born)))
            plain.sort(key=lambda entry: entry[0])
        elif plain and draw.random() < 0.5:
            assert waiting.leave(waiting.queues.oldest(0)) == plain.pop(0)[1]
        elif plain:
            assert waiting.leave(waiting.queues.youngest(0)) == plain.pop()[1]
    order = []
    while (visit := waiting.queues.oldest(0)) != NOTHING:
        order.append(waiting.leave(visit))
    assert order == [visit for _, visit in plain]
    assert waiting.queues.youngest(0) == NOTHING


def test_a_visit_waits_in_one_queue() -> None:
    waiting = Waiting()
    visit = waiting.put(5, queue=0)
    assert (waiting.queues.oldest(0), waiting.queues.youngest(1)) == (visit, NOTHING)
    waiting.queues.put(visit, 1)
    assert (waiting.queues.oldest(0), waiting.queues.youngest(1)) == (NOTHING, visit)


@pytest.mark.parametrize("what", ["children", "pins"])
def test_a_visit_whose_last_block_must_stay_is_passed_over_until_it_is_put_back(what: str) -> None:
    waiting = Waiting()
    first, second = waiting.put(1), waiting.put(2)
    getattr(waiting, what)[first] = 1
    assert waiting.queues.oldest(0) == second
    assert waiting.visits.queue[first] == waiting.queues.nowhere
    getattr(waiting, what)[first] = 0
    assert waiting.queues.oldest(0) == second
    waiting.queues.put(first, 0)
    assert waiting.queues.oldest(0) == first


def test_a_visit_without_blocks_has_nothing_to_evict() -> None:
    waiting = Waiting()
    visit = waiting.put(1)
    waiting.visits.tip[visit] = NOTHING
    assert waiting.queues.oldest(0) == NOTHING


def test_a_visit_that_the_ring_has_lost_is_not_taken_for_the_one_in_its_row() -> None:
    waiting = Waiting()
    first = waiting.put(1)
    others = [waiting.put(2) for _ in range(SIZE - 1)]
    assert waiting.queues.oldest(0) == first, "the ring has just come round"
    newest = waiting.put(3)
    assert newest % SIZE == first % SIZE
    assert waiting.queues.oldest(0) == others[0]


def test_who_wants_to_know_is_told_which_queues_have_changed() -> None:
    waiting = Waiting()
    assert bytes(waiting.queues.changed) == b"\0\0"
    waiting.put(1, queue=1)
    assert bytes(waiting.queues.changed) == b"\0\1"
