"""Chains that wait: heads first, in the order in which they came, and nothing looks at all of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from kvtide.core.chain import Chain
from kvtide.core.storing.backlog import Backlog
from tests.support import World, text


def chain(name: str, end_tokens: int = 4, blocks: int = 1, group: int = 0) -> Chain:
    return Chain(group, [f"{name}{index}".encode() for index in range(blocks)], None, end_tokens)


def popped(backlog: Backlog) -> list[bytes]:
    return [backlog.pop()[0].keys[0] for _ in range(len(backlog))]


def calls_in(function: Callable[[], object]) -> int:
    """Count the calls that Python makes, built-in ones too."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_heads_come_before_tails() -> None:
    backlog = Backlog(1)
    for tokens in (12, 4, 8):
        backlog.add(chain(f"{tokens}-", tokens), 1)
    assert popped(backlog) == [b"4-0", b"8-0", b"12-0"]


def test_among_chains_of_one_length_the_first_that_came_is_the_first_that_goes() -> None:
    backlog = Backlog(1)
    for name in "abc":
        backlog.add(chain(name), 1)
    assert popped(backlog) == [b"a0", b"b0", b"c0"]


def test_what_had_its_turn_and_comes_back_goes_before_others_of_its_length() -> None:
    backlog = Backlog(1)
    backlog.add(chain("a"), 1)
    backlog.add(chain("shorter", 2), 1)
    backlog.add(chain("b"), 1, first=True)
    backlog.add(chain("c"), 1, first=True)
    backlog.add(chain("d"), 1)
    assert popped(backlog) == [b"shorter0", b"c0", b"b0", b"a0", b"d0"]


def test_a_chain_comes_back_with_its_attempt() -> None:
    backlog = Backlog(1)
    backlog.add(chain("a"), 3)
    assert backlog.pop() == (chain("a"), 3)


def test_a_key_is_held_until_the_last_chain_with_it_is_gone() -> None:
    backlog = Backlog(2)
    backlog.add(chain("a", blocks=2), 1)
    backlog.add(chain("a"), 1)
    assert backlog.holds(0, b"a0")
    assert not backlog.holds(1, b"a0")
    backlog.pop()
    assert backlog.holds(0, b"a0")
    assert not backlog.holds(0, b"a1")
    backlog.pop()
    assert not backlog.holds(0, b"a0")


def test_nothing_is_left_when_it_was_cleared() -> None:
    backlog = Backlog(1)
    backlog.add(chain("a", blocks=3), 1)
    backlog.clear()
    assert (len(backlog), backlog.blocks, backlog.holds(0, b"a0")) == (0, 0, False)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_a_list_that_is_sorted_every_time(seed: int) -> None:
    dice = random.Random(seed)
    backlog, sorted_list = Backlog(2), list[Chain]()
    for number in range(300):
        if sorted_list and dice.random() < 0.45:
            sorted_list.sort(key=lambda waiting: waiting.end_tokens)
            assert backlog.pop()[0] is sorted_list.pop(0)
        else:
            added = chain(f"{number}-", 4 * dice.randrange(5), dice.randrange(1, 4), dice.randrange(2))
            first = dice.random() < 0.3
            backlog.add(added, 1, first=first)
            sorted_list.insert(0 if first else len(sorted_list), added)
        assert (len(backlog), backlog.blocks) == (len(sorted_list), sum(map(len, sorted_list)))
        assert all(backlog.holds(waiting.group, key) for waiting in sorted_list for key in waiting.keys)


@pytest.mark.parametrize("many", [300, 3_000])
def test_a_plan_does_as_much_whatever_the_number_of_chains_that_wait(many: int) -> None:
    def calls_of_a_plan(chains: int) -> int:
        world = World(pin_budget=2, device_blocks=chains, host_blocks=chains)
        for number in range(chains):
            world.finish(world.prefill(f"r{number}", text(f"{number}-", 4)))
        for copy in world.plan().stores:
            world.run(copy)
        assert world.manager.gauges().backlog_blocks == chains - 2
        calls = calls_in(world.plan)
        assert world.manager.gauges().backlog_blocks == chains - 4
        return calls

    assert calls_of_a_plan(many) == calls_of_a_plan(100)
