"""The simulated tier keeps what `Tier` promises, in virtual time."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from kvtide.sim.below import TIER_FAULT_KINDS, TierWorld
from kvtide.sim.run import Run
from kvtide.sim.tier import SimTier
from kvtide.sim.tokens import MOVING
from kvtide.sim.world import World
from kvtide.tiers.base import Item, Verdict

STAMP = 1 << 10
QUIET = dict.fromkeys(TIER_FAULT_KINDS, 0)


def tier_with(**faults: int) -> tuple[SimTier, Run]:
    world = World.draw(1)
    world = replace(world, habits=replace(world.habits, impatient=False, clears_fail=False))
    tiers = TierWorld((("through", "all"),), 2, 1, warm=0, impatient=0, **(QUIET | faults))
    run = Run.of(world, log=False)
    return SimTier(run, tiers, lambda: None), run


def slot(content: int) -> memoryview:
    return memoryview(array("q", [content]))


def verdicts(tier: SimTier) -> list[Verdict]:
    """Wait for one answer."""
    while not tier.wait(1.0):
        pass
    ((_, results),) = tier.poll()
    return [result.verdict for result in results]


def test_what_was_put_is_found_and_comes_back() -> None:
    tier, _ = tier_with()
    assert tier.put(1, [Item(b"a", slot(STAMP))])
    assert verdicts(tier) == [Verdict.HIT]
    tier.lookup(2, [b"a", b"b"])
    assert verdicts(tier) == [Verdict.HIT, Verdict.MISS]
    back = slot(0)
    tier.get(3, [Item(b"a", back)])
    assert (back[0], tier.uses(back)) == (MOVING, True)
    assert verdicts(tier) == [Verdict.HIT]
    assert (back[0], tier.uses(back)) == (STAMP, False)


def test_the_oldest_records_leave_when_there_is_no_room() -> None:
    tier, _ = tier_with()
    tier.put(1, [Item(key, slot(STAMP)) for key in (b"a", b"b", b"c")])
    verdicts(tier)
    assert list(tier.records) == [b"b", b"c"]


def test_a_clear_forgets_what_was_put_before_even_if_that_has_not_ended() -> None:
    tier, run = tier_with(tier_slow=256)
    tier.put(1, [Item(b"a", slot(STAMP))])
    tier.clear(2)
    run.clock.run(500)
    assert [ticket for ticket, _ in tier.poll()] == [1, 2]
    assert not tier.records


@pytest.mark.parametrize(("kind", "verdict"), [("tier_fails", Verdict.FAILED), ("tier_throttles", Verdict.THROTTLED)])
def test_a_call_that_comes_to_nothing_says_so_of_each_key(kind: str, verdict: Verdict) -> None:
    tier, _ = tier_with(**{kind: 256})
    tier.lookup(1, [b"a", b"b"])
    assert verdicts(tier) == [verdict] * 2


def test_a_damaged_record_is_a_miss() -> None:
    tier, _ = tier_with(tier_damage=256)
    tier.put(1, [Item(b"a", slot(STAMP))])
    verdicts(tier)
    tier.get(2, [Item(b"a", slot(0))])
    assert verdicts(tier) == [Verdict.MISS]


def test_a_full_or_closed_tier_takes_nothing() -> None:
    full, _ = tier_with(tier_full=256)
    assert not full.lookup(1, [b"a"])
    closed, _ = tier_with()
    closed.lookup(1, [b"a"])
    assert closed.close(1.0)
    assert not closed.lookup(2, [b"a"])
    assert [ticket for ticket, _ in closed.poll()] == [1]
