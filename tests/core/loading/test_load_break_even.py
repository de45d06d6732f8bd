"""Whether loading from host memory pays is learned from what happens (F19)."""

from __future__ import annotations

import pytest

from kvtide.core.break_even import RETRY_EVERY
from kvtide.core.loading.load_break_even import LoadBreakEven
from kvtide.core.reasons import NotLoaded
from tests.support import World, text


def learned(*loads: tuple[int, float], compute_s_per_token: float = 0.001) -> LoadBreakEven:
    even = LoadBreakEven()
    even.computed(100, 100 * compute_s_per_token)
    for tokens, seconds in loads:
        even.loaded(tokens, seconds)
    return even


def test_what_is_not_known_is_loaded() -> None:
    even = LoadBreakEven()
    assert even.pays(1)
    even.loaded(10, 99.0)
    assert even.pays(1), "what computing costs is not known"
    even = LoadBreakEven()
    even.computed(10, 0.001)
    assert even.pays(1), "what loading costs is not known"


def test_a_load_has_to_make_up_for_the_steps_around_it() -> None:
    """10 ms, and 0.1 ms for each token; computing takes 1 ms for each: even at 11.1 tokens."""
    even = learned(*((tokens, 0.010 + 0.0001 * tokens) for tokens in (100, 20, 200, 40)))
    assert not even.pays(11)
    assert even.pays(12)
    assert even.pays(10_000)


def test_loads_of_one_length_are_taken_to_cost_the_same_at_every_length() -> None:
    even = learned((64, 0.050), (64, 0.050))
    assert not even.pays(49)
    assert even.pays(51)


def test_a_longer_load_is_not_believed_to_be_quicker() -> None:
    even = learned((100, 0.050), (200, 0.010))
    assert even.pays(100) == even.pays(31)
    assert not even.pays(20)


def test_loading_that_is_always_slower_is_given_up() -> None:
    even = learned((100, 1.0), (200, 2.0))
    assert not even.pays(10)
    assert not even.pays(100_000)


def test_loads_of_nothing_are_loads_of_one_length() -> None:
    even = learned((0, 0.050), (0, 0.050))
    assert not even.pays(49)
    assert even.pays(51)


def test_what_happened_long_ago_fades() -> None:
    even = learned((100, 100.0), (200, 200.0))
    assert not even.pays(150)
    for _ in range(300):
        even.loaded(100, 0.001)
        even.loaded(200, 0.002)
    assert even.pays(150)


def test_f19_a_short_prefix_is_computed_when_that_was_faster_so_far() -> None:
    world = World(min_load_tokens="auto")
    world.serve("r", text("a", 40))
    world.fill_device()
    assert world.match(world.add("first", text("a", 9))).tokens == 8, "nothing is known"
    world.manager.computed(100, 0.1)
    world.manager.loaded(16, 0.012)
    match = world.match(world.add("short", text("a", 9)))
    assert match.tokens == 0
    assert match.missed[NotLoaded.BELOW_BREAK_EVEN] == 8
    assert world.match(world.add("long", text("a", 17))).tokens == 16


def test_f19_what_is_declined_is_counted_and_tried_again() -> None:
    world = World(min_load_tokens="auto", host_blocks=1_000)
    world.serve("r", text("a", 40))
    world.manager.computed(100, 0.1)
    world.manager.loaded(16, 1.0)
    for number in range(2 * RETRY_EVERY):
        world.fill_device()
        world.serve(f"again {number}", text("a", 9))
        for other in (f"other {number}", f"another {number}"):  # finds nothing, so nothing is declined
            world.serve(other, text(other, 9))
        world.add(f"unasked {number}", text("a", 9))
        world.manager.admit(f"unasked {number}", 0)
    metrics = world.manager.metrics
    assert metrics.not_loaded[NotLoaded.BELOW_BREAK_EVEN] == 2 * 8 * (RETRY_EVERY - 1)
    assert metrics.loaded_tokens == 2 * 8


@pytest.mark.parametrize("value", [0, 64])
def test_a_number_is_a_number(value: int) -> None:
    world = World(min_load_tokens=value)
    world.serve("r", text("a", 80))
    world.fill_device()
    world.manager.computed(100, 0.1)
    world.manager.loaded(16, 99.0)
    assert world.match(world.add("long", text("a", 73))).tokens == 72, "nothing is learned"
