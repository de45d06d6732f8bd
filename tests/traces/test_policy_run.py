"""Policies against traces, compared with plain models."""

from __future__ import annotations

import random
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.core.eviction import POLICIES
from kvtide.core.groups import Key
from kvtide.errors import ConfigError
from kvtide.traces.belady import belady_hits
from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.policy_run import PolicyRun, as_keys, run_policy
from kvtide.traces.workloads import Workload
from tests.traces.support import prompts

Prompts = list[tuple[int, ...]]


def plain_lru(made: Prompts, slots: int) -> int:
    """A list, oldest first. What a prompt has is used from its end to its beginning."""
    order: list[int] = []
    hits = 0
    for prompt in made:
        for block in prompt:
            if block not in order:
                break
            hits += 1
        for block in reversed(prompt):
            if block in order:
                order.remove(block)
            order.append(block)
        del order[: max(0, len(order) - slots)]
    return hits


@given(prompts(), st.integers(1, 40))
def test_the_curve_of_lru_is_that_of_a_plain_list_at_every_size(made: Prompts, slots: int) -> None:
    curve = LruCurve()
    for prompt in made:
        curve.add(prompt)
    assert curve.hits(slots) == plain_lru(made, slots)
    sizes, hits = curve.curve()
    assert sizes == sorted(sizes)
    assert all(curve.hits(size) == total for size, total in zip(sizes, hits, strict=True))
    assert curve.unique_blocks == len({block for prompt in made for block in prompt})


@pytest.mark.parametrize("policy", POLICIES)
@given(made=prompts(), slots=st.integers(1, 40))
def test_no_policy_beats_belady_and_enough_memory_hits_all(policy: str, made: Prompts, slots: int) -> None:
    keys = [as_keys(prompt) for prompt in made]
    bound = belady_hits(made, slots)
    assert run_policy(policy, keys, slots).hits <= bound
    enough = len({block for prompt in made for block in prompt})
    assert run_policy(policy, keys, enough).hits == belady_hits(made, enough) == sum(map(len, made)) - enough


def brute_force(made: Prompts, slots: int, cached: frozenset[int] = frozenset()) -> int:
    """The most hits of any choice of whole prefixes to keep."""
    if not made:
        return 0
    prompt, rest = made[0], made[1:]
    hits = next((depth for depth, block in enumerate(prompt) if block not in cached), len(prompt))
    there = sorted(cached | set(prompt))
    best = 0
    for chosen in range(1 << len(there)):
        kept = frozenset(block for index, block in enumerate(there) if chosen >> index & 1)
        if len(kept) <= slots:
            best = max(best, brute_force(rest, slots, kept))
    return hits + best


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_belady_is_the_best_of_all_choices(slots: int) -> None:
    made: Prompts = [(1, 2), (1, 3), (4,), (1, 2), (4, 5), (1, 3)]
    assert belady_hits(made, slots) == brute_force(made, slots)


@pytest.mark.parametrize("policy", ["prefix", "forecast"])
def test_what_is_kept_are_whole_prefixes(policy: str) -> None:
    run = PolicyRun(policy, 60)
    for request in Workload("mixture", 300, seed=5):
        keys = as_keys(request.hashes)
        run.request(keys)
        there = [key in run._slot_of for key in keys]
        assert there == sorted(there, reverse=True)


def test_a_memory_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        PolicyRun("lru", 0)


def test_the_same_trace_has_the_same_hits() -> None:
    keys = [as_keys(request.hashes) for request in Workload("mixture", 400)]
    for policy in POLICIES:
        assert run_policy(policy, keys, 200).hits == run_policy(policy, keys, 200).hits


@pytest.mark.parametrize("name", ["chats", "agents", "documents", "mixture"])
@pytest.mark.parametrize("share", [0.03, 0.15])
def test_forecast_is_at_least_as_good_as_the_others(name: str, share: float) -> None:
    keys = [as_keys(request.hashes) for request in Workload(name, 2500, seed=11)]
    slots = int(share * len({key for prompt in keys for key in prompt}))
    hits = {policy: run_policy(policy, keys, slots).hit_ratio for policy in POLICIES}
    best = max(ratio for policy, ratio in hits.items() if policy != "forecast")
    assert hits["forecast"] > best - 0.005, hits


def rounds_of_conversations(turns: int, rounds: int) -> tuple[list[list[Key]], int]:
    """32 conversations that take turns, then as many others; and the most blocks that those of one round have."""
    draw, names = random.Random(1), count()
    prompts: list[list[int]] = []
    largest = 0
    for _ in range(rounds):
        talks = [list(islice(names, draw.randint(12, 36))) for _ in range(32)]
        for _ in range(turns):
            for talk in talks:
                talk.append(next(names))
                prompts.append([*talk])
        largest = max(largest, sum(map(len, talks)))
    return [as_keys(prompt) for prompt in prompts], largest


@pytest.mark.parametrize("turns", [2, 4, 8])
@pytest.mark.parametrize("share", [1, 1.05, 1.1, 1.25, 1.5])
def test_forecast_lets_conversations_go_that_have_ended_where_those_that_go_on_fit(turns: int, share: float) -> None:
    prompts, largest = rounds_of_conversations(turns, rounds=2)
    prefix, forecast = (run_policy(policy, prompts, int(share * largest)).hits for policy in ("prefix", "forecast"))
    assert forecast > 0.98 * prefix


def test_admission_keeps_out_what_is_used_once() -> None:
    keys = [as_keys(request.hashes) for request in Workload("once", 200)]
    run = PolicyRun("lru", 50, admission=True)
    for prompt in keys:
        run.request(prompt)
    assert not run._slot_of
    keys = [as_keys(request.hashes) for request in Workload("documents", 800)]
    assert run_policy("lru", keys, 300, admission=True).hits > run_policy("lru", keys, 300).hits
