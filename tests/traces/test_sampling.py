"""Samples tell what the whole would, within their error."""

from __future__ import annotations

import pytest

from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.policy_run import as_keys, run_policy
from kvtide.traces.sampling import SampledTrace
from kvtide.traces.workloads import Workload


def lru_ratio(made: list[tuple[int, ...]], slots: int) -> float:
    curve = LruCurve()
    for prompt in made:
        curve.add(prompt)
    return curve.hits(slots) / sum(map(len, made))


@pytest.mark.parametrize("policy", ["prefix", "arc", "forecast"])
@pytest.mark.parametrize("name", ["chats", "mixture"])
def test_an_estimate_is_near_the_full_run(policy: str, name: str) -> None:
    made = [request.hashes for request in Workload(name, 4000, seed=2)]
    sampled = SampledTrace(made, sample_blocks=8_000)
    assert sampled.parts > 3
    slots = 1500
    estimate = sampled.estimate(policy, slots, lru_ratio(made, slots))
    exact = run_policy(policy, [as_keys(prompt) for prompt in made], slots).hit_ratio
    assert abs(estimate.hit_ratio - exact) < 0.015 + 3 * estimate.error
    assert estimate.error < 0.03


def test_a_short_trace_is_run_as_a_whole() -> None:
    made = [request.hashes for request in Workload("chats", 200)]
    sampled = SampledTrace(made)
    estimate = sampled.estimate("arc", 100, 0.0)
    assert estimate.error == 0
    assert estimate.hit_ratio == run_policy("arc", [as_keys(prompt) for prompt in made], 100).hit_ratio
