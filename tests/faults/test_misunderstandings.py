"""F19, F22 and F24: what is configured is what happens, and a hit is a hit for every group."""

from __future__ import annotations

import pytest

from kvtide.core import ChunkedLocal, FullAttention, Geometry, Group, OffloadConfig, SlidingWindow, StateSpace
from kvtide.core.host_pool import NO_KEY
from kvtide.errors import ConfigError
from tests.support import World, text

GEOMETRY = Geometry(groups=(FullAttention(16),), block_bytes=4096, device_blocks=100)


def test_f19_fewer_tokens_than_the_break_even_are_computed_rather_than_loaded() -> None:
    world = World(min_load_tokens=9)
    world.serve("r", text("a", 40))
    world.fill_device()
    assert world.match(world.add("short", text("a", 9))).tokens == 0
    assert world.match(world.add("long", text("a", 17))).tokens == 16


@pytest.mark.parametrize(
    ("options", "option", "said"),
    [
        ({"host": "64GiB", "events": "false"}, "events", "without quotes"),
        ({"host": "64GiB", "mod": "lazy"}, "mod", 'did you mean "mode"?'),
        ({"host": "64 gigs"}, "host", "size in bytes"),
        ({"host": True}, "host", "size in bytes"),
        ({"host": -1}, "host", "size in bytes"),
        ({"host": 4095}, "host", "at least one block, 4096 bytes"),
        ({"host": "1GiB", "host_per_rank": "1GiB"}, "host", "either host or host_per_rank"),
        ({}, "host", "either host or host_per_rank"),
        ({"host": "1GiB", "mode": "Eager"}, "mode", "one of eager, lazy"),
        ({"host": "1GiB", "policy": "fifo"}, "policy", "one of prefix, lru"),
        ({"host": "1GiB", "pin_budget": 0}, "pin_budget", "at least 1"),
        ({"host": "1GiB", "pin_budget": 101}, "pin_budget", "100 blocks"),
        ({"host": "1GiB", "min_load_tokens": 1.5}, "min_load_tokens", "a whole number"),
    ],
)
def test_f22_an_option_that_cannot_mean_what_it_says_is_refused_by_name(
    options: dict[str, object], option: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=option) as refused:
        OffloadConfig.build(GEOMETRY, options)
    assert refused.value.option == option
    assert refused.value.value == options.get(option)
    assert said in str(refused.value)


def test_f22_host_is_per_server_and_host_per_rank_per_rank() -> None:
    geometry = Geometry(groups=(FullAttention(16),), block_bytes=4096, device_blocks=100, ranks=4)
    assert OffloadConfig.build(geometry, {"host": 40 * 4096}).slots == 10
    assert OffloadConfig.build(geometry, {"host_per_rank": 40 * 4096}).slots == 40


HYBRIDS: list[tuple[Group, ...]] = [
    (FullAttention(4), SlidingWindow(4, 9)),
    (FullAttention(8), SlidingWindow(4, 9)),
    (FullAttention(4), ChunkedLocal(4, 16)),
    (FullAttention(4), StateSpace(8)),
    (FullAttention(4), SlidingWindow(8, 17), ChunkedLocal(4, 8), StateSpace(16)),
]


@pytest.mark.parametrize("groups", HYBRIDS)
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f24_a_hybrid_prompt_comes_back_whole_for_every_group(groups: tuple[Group, ...], mode: str) -> None:
    world = World(groups=groups, device_blocks=64, host_blocks=200, mode=mode, step_tokens=256)
    world.serve("r", text("a", 65), chunk=8)
    for _ in range(10):  # lazy mode stores as much a step as the pin budget allows
        world.step()
    world.fill_device()
    request = world.add("again", text("a", 65))
    assert world.admit(request)
    assert world.step().loaded == ("again",)  # the world compares every block that is needed
    assert request.computed == 64
    world.compute(request)


@pytest.mark.parametrize("groups", HYBRIDS)
def test_f24_a_hit_ends_where_one_group_cannot_resume(groups: tuple[Group, ...]) -> None:
    world = World(groups=groups, device_blocks=64, host_blocks=200)
    world.serve("r", text("a", 65), chunk=8)
    world.fill_device()
    request = world.add("again", text("a", 65))
    whole = world.match(request).tokens
    last = len(groups) - 1
    # Take away the last state or window block: its group cannot resume at the end any more.
    key = request.keys[last][whole // groups[last].block_tokens - 1]
    slot = world.host_pool.cached_slot(last, key)
    assert slot is not None
    world.host_pool._key[slot] = NO_KEY
    shorter = world.match(request)
    assert shorter.tokens < whole or groups[last].first_needed(whole) * groups[last].block_tokens >= whole
    world.host_pool._key[slot] = key


def test_f24_old_window_blocks_are_neither_needed_nor_loaded() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 9))
    world = World(groups=groups, device_blocks=64)
    world.serve("r", text("a", 41), chunk=8)
    world.fill_device()
    world.begin("again", text("a", 41))
    (load,) = world.plan().loads
    assert len(load.blocks) == 10 + 2, "ten blocks of full attention, two that the window reaches"


def test_f24_a_part_of_an_offer_that_no_window_can_resume_from_is_recomputed() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 5))
    world = World(groups=groups, device_blocks=64, pin_budget=64)
    request = world.prefill("r", text("a", 33))
    world.slide(request)  # only the last window block can still be stored
    world.finish(request)
    world.drain()
    world.fill_device()
    again = world.add("again", text("a", 33))
    assert world.match(again).tokens == 32
    assert world.admit(again, accept=16)
    assert world.step().failed == ("again",)
    world.admit(again, accept=0)
    world.compute(again)
    world.finish(again)
    world.drain()
