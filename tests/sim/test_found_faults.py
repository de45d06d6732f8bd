"""Seeds that showed real faults of the core while it was built, each with a sentence."""

from __future__ import annotations

import pytest

from kvtide.sim.batch import run_seed

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
    (
        770004010,
        "lru",
        "a reset between the end of a search and the next match: what had come up stayed pinned although forgotten",
    ),
    (
        990008954,
        "prefix",
        "the checker, not the core: a reset made a fetch void that computed blocks had relied on, and a store with it; "
        "both were counted as lost, and only the store was expected",
    ),
]
"""Seed, policy (so that a new policy does not change the world) and what was wrong."""


@pytest.mark.parametrize(("seed", "policy", "what"), FOUND, ids=[str(seed) for seed, _, _ in FOUND])
def test_what_was_found_once_is_not_found_again(seed: int, policy: str, what: str) -> None:
    assert run_seed(seed, {"policy": policy}).found is None, what
