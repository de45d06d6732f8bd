"""What the worlds reach: every call of the façade, every policy, every habit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest

from kvtide.core import POLICIES, OffloadManager
from kvtide.core.messages import Plan
from kvtide.sim.batch import run_seed
from kvtide.sim.checkers import watch
from kvtide.sim.checkers.overdue import OverdueChecker
from kvtide.sim.world import Habits, World

SEEDS = 60
METHODS = sorted(name for name, member in vars(OffloadManager).items() if not name.startswith("_") and callable(member))


def test_every_method_of_the_facade_is_called() -> None:
    calls: Counter[str] = Counter()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return method(*args, **kwargs)

        return counted

    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in METHODS:
            monkeypatch.setattr(OffloadManager, name, counting(name, getattr(OffloadManager, name)))
        for seed in range(SEEDS):
            run_seed(seed, {})
    assert [name for name in METHODS if not calls[name]] == []


def test_transfers_of_every_kind_are_overdue_while_ranks_copy_them_and_when_they_are_over() -> None:
    seen: set[tuple[str, bool]] = set()

    class Seeing(OverdueChecker):
        def plan_made(self, plan: Plan) -> None:
            super().plan_made(plan)
            for flight in self.observed.overdue.values():
                seen.add((flight.kind, any(rank.has_unfinished(flight.id) for rank in self.ranks)))

    with patch.object(watch, "CHECKERS", (Seeing,)):
        for seed in (seed for seed in range(10 * SEEDS) if World.draw(seed).step_s):
            run_seed(seed, {})
    # Lookups have a deadline, and clears are answered at once: they are overdue only when nobody hears of their end.
    assert seen >= set(product(("load", "store", "fetch", "sink"), (False, True))) | {
        ("lookup", False),
        ("clear", False),
    }


def test_every_policy_and_learned_break_evens_are_drawn() -> None:
    worlds = [World.draw(seed) for seed in range(SEEDS)]
    assert {world.policy for world in worlds} == set(POLICIES)
    assert any(world.min_load_tokens is None and world.habits.tells_costs for world in worlds)
    assert {world.mode for world in worlds if world.min_load_tokens is None} == {"eager", "lazy"}


def test_f27_ranks_that_hold_the_same_are_drawn_all_of_them_or_some() -> None:
    drawn = {(world.ranks, world.replicas) for world in map(World.draw, range(4 * SEEDS))}
    assert drawn == {(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4)}


def test_every_habit_is_drawn_both_ways() -> None:
    worlds = [World.draw(seed) for seed in range(SEEDS)]
    for habit in fields(Habits):
        assert len({getattr(world.habits, habit.name) for world in worlds}) > 1, habit.name


def test_blocks_are_found_by_key_before_the_step_that_fills_them_and_stored() -> None:
    unfilled = 0
    real_plan = OffloadManager.plan

    def plan(self: OffloadManager, *, idle: bool = False) -> Any:
        nonlocal unfilled
        made = real_plan(self, idle=idle)
        unfilled += sum(not store.filled for store in made.stores)
        return made

    with patch.object(OffloadManager, "plan", plan):
        for seed in range(SEEDS):
            run_seed(seed, {"keys_when_scheduled": "yes"})
    assert unfilled > SEEDS


def test_resets_come_while_loads_are_about_to_begin_and_clears_fail() -> None:
    results = [run_seed(seed, {"resets_while_loading": "yes"}) for seed in range(SEEDS)]
    assert sum(result.reasons.get("not_loaded.reset", 0) for result in results) > 0
    assert sum(result.faults.get("clear_fails", 0) for result in results) > SEEDS // 4
