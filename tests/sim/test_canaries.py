"""With a guard taken away, the simulator notices; and what it notices is what the guard was for."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import pytest

from kvtide.sim.batch import Caught, run_canary
from kvtide.sim.canaries import CANARIES, BrokenCanary, Canary
from kvtide.sim.canaries.base import Patches
from kvtide.sim.checkers import watch
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.conservation import ConservationChecker
from kvtide.sim.checkers.content import ContentChecker
from kvtide.sim.checkers.progress import ProgressChecker
from kvtide.sim.checkers.references import ReferencesChecker
from kvtide.sim.checkers.visibility import VisibilityChecker
from kvtide.sim.rank import Rank
from kvtide.sim.work import StepWork
from tests.sim.test_found_faults import OLD_ENGINES

FAULTS = {"F1", "F2", "F3", "F5", "F6", "F7", "F8", "F10", "F11", "F12", "F15", "F16", "F27", "F28", "F29"}
BY_NAME = {canary.name: canary for canary in CANARIES}
SEEDS_MAX = 1_500
"""From seed 0 on: fresh ones are for `make soak`."""


@cache
def caught(name: str) -> Caught:
    return run_canary(BY_NAME[name], 0, {}, SEEDS_MAX)


def test_there_is_a_canary_for_every_fault_that_the_simulator_must_notice() -> None:
    assert {canary.fault for canary in CANARIES} >= FAULTS


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: f"{canary.fault}-{canary.name}")
def test_a_canary_is_caught_by_what_it_is_there_for(canary: Canary) -> None:
    entry = caught(canary.name)
    assert entry.caught_after is not None, f"{canary.name} survived {SEEDS_MAX} seeds"
    assert not entry.broken, f"{canary.name} is caught by {entry.invariant} in seed {entry.seed}: {entry.what}"


def test_most_canaries_are_caught_within_200_seeds() -> None:
    after = [caught(canary.name).caught_after for canary in CANARIES]
    assert sum(seeds is not None and seeds <= 200 for seeds in after) > len(CANARIES) * 3 // 4


@pytest.mark.parametrize("name", ["unpinned-stores", "no-store-fence", "no-load-fence", "unkept-promise"])
def test_broken_rules_end_in_wrong_bytes(name: str) -> None:
    # With all checkers on, these are caught as soon as two meet in a block. Here nobody looks but at the bytes.
    with patch.object(watch, "CHECKERS", (ContentChecker, VisibilityChecker)):
        found = run_canary(BY_NAME[name], 0, OLD_ENGINES, SEEDS_MAX)
    assert found.invariant in ("I3", "I4")


def test_pins_of_overdue_loads_that_are_returned_at_once_end_in_wrong_bytes() -> None:
    with patch.object(watch, "CHECKERS", (ContentChecker, VisibilityChecker)):
        found = run_canary(BY_NAME["overdue-returns-pins"], 0, {}, SEEDS_MAX)
    assert found.invariant == "I4"


def test_blocks_of_overdue_loads_are_seen_to_be_given_out() -> None:
    # With all checkers on, mostly the pins are missed in the next plan. Here nobody counts them.
    with (
        patch.object(ReferencesChecker, "plan_made", Checker.plan_made),
        patch.object(ConservationChecker, "plan_made", Checker.plan_made),
    ):
        found = run_canary(BY_NAME["overdue-returns-pins"], 0, {}, SEEDS_MAX)
    assert found.invariant == "I1"


def test_who_waits_without_end_for_a_silent_rank_hangs() -> None:
    with patch.object(watch, "CHECKERS", (ProgressChecker,)):
        found = run_canary(BY_NAME["never-overdue"], 0, {}, SEEDS_MAX)
    assert found.invariant == "I8"
    assert "no progress" in (found.what or "")


def test_f27_a_block_is_not_visible_before_every_rank_has_written_its_share() -> None:
    # Nobody looks but at the bytes: of two ranks that write one copy, the first is believed.
    with patch.object(watch, "CHECKERS", (ContentChecker, VisibilityChecker)):
        found = run_canary(BY_NAME["one-rank-is-enough"], 0, {"ranks": "2", "replicas": "2"}, SEEDS_MAX)
    assert found.invariant == "I3"


def test_a_canary_leaves_nothing_behind() -> None:
    before = [getattr(owner, name) for canary in CANARIES for owner, name, _ in canary.patches()]
    for canary in CANARIES:
        with canary.applied():
            pass
    assert before == [getattr(owner, name) for canary in CANARIES for owner, name, _ in canary.patches()]


# ---------------------------------------------------------------------- canaries that prove nothing


def _canary(patches: Patches, *, by: str = "I1", raises: str | None = None) -> Canary:
    return Canary("F7", "under-test", "something is taken away", lambda: patches, frozenset({by}), raises)


def test_a_patch_that_is_called_otherwise_than_what_it_replaces_is_refused() -> None:
    def without_work(self: Rank) -> bool:
        return True

    with pytest.raises(BrokenCanary, match="may_compute"), _canary([(Rank, "may_compute", without_work)]).applied():
        pass


def _raising(self: Rank, work: StepWork) -> bool:
    raise TypeError("a mistake in the patch")


def test_a_canary_that_is_caught_by_its_own_mistake_is_broken() -> None:
    found = run_canary(_canary([(Rank, "may_compute", _raising)], by="I8"), 0, {}, 50)
    assert found.invariant == "I8"
    assert found.broken


def test_a_canary_that_is_caught_by_an_invariant_that_it_does_not_name_is_broken() -> None:
    named = BY_NAME["no-flush"]
    wrong = Canary(named.fault, named.name, named.what, named.patches, frozenset({"I1"}))
    assert run_canary(wrong, 0, {}, 50).broken


def test_an_exception_that_the_guard_prevents_is_a_catch() -> None:
    assert not run_canary(_canary([(Rank, "may_compute", _raising)], raises="TypeError"), 0, {}, 50).broken
