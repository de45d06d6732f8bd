"""With a guard taken away, the simulator notices; and what it notices is what the guard was for."""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest

from kvtide.sim.batch import CANARY_SEEDS_MAX, run_canary
from kvtide.sim.canaries import CANARIES, Canary
from kvtide.sim.checkers import watch
from kvtide.sim.checkers.content import ContentChecker
from kvtide.sim.checkers.visibility import VisibilityChecker

FAULTS = {"F1", "F2", "F3", "F5", "F6", "F7", "F8", "F10", "F11", "F12", "F15", "F16"}
BY_NAME = {canary.name: canary for canary in CANARIES}


def test_there_is_a_canary_for_every_fault_that_the_simulator_must_notice() -> None:
    assert {canary.fault for canary in CANARIES} >= FAULTS


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: f"{canary.fault}-{canary.name}")
def test_a_canary_does_not_survive(canary: Canary) -> None:
    first = random.SystemRandom().getrandbits(40)
    caught = run_canary(canary, first, {})
    assert caught.caught_after is not None, f"{canary.name} survived {CANARY_SEEDS_MAX} seeds from {first} on"


def test_most_canaries_are_caught_within_200_seeds() -> None:
    caught = [run_canary(canary, 0, {}).caught_after for canary in CANARIES]
    assert sum(after is not None and after <= 200 for after in caught) > len(CANARIES) * 3 // 4


@pytest.mark.parametrize("name", ["unpinned-stores", "no-store-fence", "no-load-fence", "unkept-promise"])
def test_broken_rules_end_in_wrong_bytes(name: str) -> None:
    # With all checkers on, these are caught as soon as two meet in a block. Here nobody looks but at the bytes.
    with patch.object(watch, "CHECKERS", (ContentChecker, VisibilityChecker)):
        caught = run_canary(BY_NAME[name], 0, {})
    assert caught.invariant in ("I3", "I4")


def test_a_canary_leaves_nothing_behind() -> None:
    before = [getattr(owner, name) for canary in CANARIES for owner, name, _ in canary.patches()]
    for canary in CANARIES:
        with canary.applied():
            pass
    assert before == [getattr(owner, name) for canary in CANARIES for owner, name, _ in canary.patches()]
