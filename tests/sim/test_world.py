from __future__ import annotations

import pytest

from kvtide.core import Geometry
from kvtide.errors import ConfigError
from kvtide.sim.configuration import config_of
from kvtide.sim.layouts import LAYOUTS
from kvtide.sim.options import WORLD_OPTIONS, apply_overrides, as_arguments, parse_overrides
from kvtide.sim.tokens import ROOT, Tokens, epoch_of, group_of, node_of, stamp
from kvtide.sim.world import World, blocks_needed


@pytest.mark.parametrize("seed", range(50))
def test_every_world_is_a_valid_configuration_in_which_every_request_can_run(seed: int) -> None:
    world = World.draw(seed)
    assert isinstance(config_of(world).geometry, Geometry)
    assert world.device_blocks >= blocks_needed(world.groups, world.arrivals, world.chunk_tokens)
    assert 0 <= world.slots_ready <= world.host_slots


def test_a_stamp_says_which_tokens_which_group_and_which_weights() -> None:
    content = stamp(77, 3, 2)
    assert (node_of(content), epoch_of(content), group_of(content)) == (77, 3, 2)
    assert len({stamp(node, epoch, group) for node in range(4) for epoch in range(4) for group in range(4)}) == 64


def test_two_sequences_have_one_node_exactly_when_they_are_equal() -> None:
    tokens = Tokens()
    first = tokens.after(tokens.after(ROOT, 1), 2)
    assert tokens.after(tokens.after(ROOT, 1), 2) == first
    assert tokens.after(tokens.after(ROOT, 2), 1) != first
    assert tokens.length[first] == 2
    assert tokens.generated(first) == tokens.generated(first)


def test_a_world_can_be_described() -> None:
    assert any("device blocks" in line for line in World.draw(3).describe())


# ---------------------------------------------------------------------- options


def test_options_fix_what_was_drawn() -> None:
    overrides = parse_overrides(["mode=lazy,ranks=3", "faults=failed_copy+lost_report", "early=no", "requests=r0+r2"])
    world = apply_overrides(World.draw(5), overrides)
    assert (world.mode, world.ranks, world.habits.early) == ("lazy", 3, False)
    assert [arrival.name for arrival in world.arrivals] == ["r0", "r2"]
    assert set(world.faults.kinds) <= {"failed_copy", "lost_report"}


def test_f27_ranks_that_hold_the_same_divide_all_ranks() -> None:
    assert apply_overrides(World.draw(5), {"ranks": "4", "replicas": "2"}).replicas == 2
    with pytest.raises(ConfigError, match="a divisor of the ranks, 3"):
        apply_overrides(World.draw(5), {"ranks": "3", "replicas": "2"})
    drawn = next(world for world in map(World.draw, range(100)) if world.replicas == 2)
    assert apply_overrides(drawn, {"ranks": "3"}).replicas == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_can_be_asked_for(layout: str) -> None:
    world = apply_overrides(World.draw(5), {"layout": layout})
    assert world.layout == layout
    assert world.device_blocks >= blocks_needed(world.groups, world.arrivals, world.chunk_tokens)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank=3", 'did you mean "ranks"'),
        ("nonsense", "known are layout"),
        ("mode=fast", "one of eager, lazy"),
        ("ranks=9", "from 1 to 4"),
        ("ranks=two", "from 1 to 4"),
        ("faults=fire", "slow_copy"),
        ("early=maybe", "yes or no"),
        ("requests=r999", "has r0 to"),
        ("device_blocks=1", "at least"),
        ("pin_budget=100000", "at most"),
        ("slots_ready=100000", "at most"),
        ("resets=many", "none"),
    ],
)
def test_an_option_that_cannot_be_satisfied_says_what_is_possible(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        apply_overrides(World.draw(3), parse_overrides([text]))


def test_overrides_can_be_written_as_arguments_and_read_back() -> None:
    overrides = {"mode": "lazy", "ranks": "2"}
    arguments = as_arguments(overrides).split()
    assert parse_overrides([value for value in arguments if value != "--world"]) == overrides


def test_every_option_is_explained() -> None:
    assert all(option.what and option.expected for option in WORLD_OPTIONS.values())
