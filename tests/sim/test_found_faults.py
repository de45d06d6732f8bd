"""Seeds that showed real faults of the core while it was built, each with a sentence."""

from __future__ import annotations

import pytest

from kvtide.sim.batch import run_seed
from kvtide.sim.faults import FAULT_KINDS
from kvtide.sim.options import WITH_NODE

FOUND = [
    (
        22,
        "prefix",
        "lazy, the host smaller than the free queue: each store evicted the last one, and the engine never rested",
    ),
    (29, "prefix", "the same, with other pools"),
    (
        945,
        "prefix",
        "lazy, the only slot holds the parent of what is to be stored: waited for pins that nobody would return",
    ),
    (2397, "lru", "the same, with least recently used"),
    (
        1028,
        "prefix",
        "a request with fewer keys than its first needed block: an IndexError in the plan killed the engine",
    ),
    (1431, "prefix", "the same, in a world where a window ends there"),
    (
        373399776742,
        "lru",
        "admitted later than matched, when the device had lost its part: blocks out of their window were not counted",
    ),
]
"""Seed, policy (so that a new policy does not change the world) and what was wrong."""


OLD_FAULTS = "+".join(kind for kind in FAULT_KINDS if kind not in ("copy_refused", "copy_raises", "not_kept"))
OLD_ENGINES: dict[str, str] = dict.fromkeys(
    (
        "keys_when_scheduled",
        "finds_newest",
        "finds_dropped",
        "rounds_windows_up",
        "preempts_at_will",
        "tells_evicted",
        "asks_who_waits",
        "impatient",
        "announces_loads",
        "tells_costs",
        "resets_while_loading",
        "clears_fail",
    ),
    "no",
) | {"step_s": "0", "stops_at": "none", "faults": OLD_FAULTS, "tier": "none"}
"""What came later: without it the worlds are as they were when the faults were found."""


FOUND_BY_NEW_ENGINES = [
    (6, "written through and on evict: what was evicted to sink was lost to tiers written through, and not counted"),
    (595, "lazy: a block on its way up from below counted as stored, did not come, and was never looked at again"),
    (358, "a reset between the end of a search and the next match: what had come up stayed pinned although forgotten"),
    (
        990008954,
        "the checker, not the core: a reset made a fetch void that computed blocks had relied on, and a store with it; "
        "both were counted as lost, and only the store was expected",
    ),
]
"""Seed and what was wrong, in worlds as they are drawn now, but for the time and lost devices."""
FOUND_BY_SILENCE = [
    (30416, "a request began to wait for a fetch that was overdue already, and for nothing else"),
    (35, "a device was lost: what was computed after that waited without end, neither stored nor counted"),
    (
        200007,
        "the checker, not the core: a part of an offer was accepted that ends in a block without a key, and it asked "
        "for that key",
    ),
    (
        327936727514,
        "a request that fills the device lost all its lives at the same place to the pins of what it had stored, and "
        "the host was too small to let it go on from there",
    ),
]
"""Seed and what was wrong, in worlds as they are drawn since the time is told and devices are lost."""

FOUND_WITH_A_NODE = [
    (38, "lazy: an idle engine asked a full node for slots again and again, and never came to rest"),
    (158, "a part of an offer was loaded, and the lease of all of it returned when that began"),
    (8, "calls of a life that was over went to the next one, which had begun unnoticed; its answers killed the engine"),
    (306, "slots were granted when the blocks had been given away and were about to be filled again: no fence"),
    (421, "what was found and is not worth loading kept a life from being drained, and its slots in quarantine"),
    (35, "a device was lost, and the answers to what was asked before killed the engine"),
    (
        9,
        "an engine that had paused left its node because of a reservation that was answered meanwhile, and had to map "
        "all of its memory again",
    ),
    (775726619684, "the checker, not the core: ten seconds that were added up from steps were a little less than ten"),
    (1072587925042, "the same, and a little more than ten"),
    (950481, "lazy: what a full node had refused was kept from a request that waited for it, each time it began again"),
    (5013906, "the same, with blocks that were computed anew each time"),
    (5008277, "lazy: the same with what a node had already, where nobody remembered that"),
    (145, "what waited for a tier when its node was cleared was not loaded, and not counted"),
    (64, "of a request with fewer keys than blocks, what had no key was not counted as not loaded"),
    (
        78901907768,
        "the checker, not the core: an engine that lost its device in the last quiet round was looked at before it "
        "could come back",
    ),
]
"""Seed and what was wrong, in worlds with a node."""


@pytest.mark.parametrize(("seed", "what"), FOUND_WITH_A_NODE, ids=[str(seed) for seed, _ in FOUND_WITH_A_NODE])
def test_what_was_found_with_a_node_is_not_found_again(seed: int, what: str) -> None:
    assert run_seed(seed, WITH_NODE).found is None, what


@pytest.mark.parametrize(("seed", "what"), FOUND_BY_SILENCE, ids=[str(seed) for seed, _ in FOUND_BY_SILENCE])
def test_what_was_found_since_ranks_fall_silent_is_not_found_again(seed: int, what: str) -> None:
    assert run_seed(seed, {}).found is None, what


@pytest.mark.parametrize(("seed", "what"), FOUND_BY_NEW_ENGINES, ids=[str(seed) for seed, _ in FOUND_BY_NEW_ENGINES])
def test_what_was_found_by_new_engines_is_not_found_again(seed: int, what: str) -> None:
    assert run_seed(seed, {"step_s": "0", "stops_at": "none"}).found is None, what


@pytest.mark.parametrize(("seed", "policy", "what"), FOUND, ids=[str(seed) for seed, _, _ in FOUND])
def test_what_was_found_once_is_not_found_again(seed: int, policy: str, what: str) -> None:
    assert run_seed(seed, OLD_ENGINES | {"policy": policy, "min_load_tokens": "0"}).found is None, what
