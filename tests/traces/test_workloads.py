"""Synthetic workloads: from a seed, in order, endless, and of the kind they say."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest

from kvtide.errors import ConfigError
from kvtide.traces.consistency import consistent
from kvtide.traces.record import checked
from kvtide.traces.stats import trace_stats
from kvtide.traces.workloads import WORKLOADS, Workload

every = pytest.mark.parametrize("name", WORKLOADS)


@every
def test_the_same_seed_makes_the_same_requests_and_another_seed_others(name: str) -> None:
    first = list(Workload(name, 60, seed=1))
    assert first == list(Workload(name, 60, seed=1))
    assert first != list(Workload(name, 60, seed=2))


@every
def test_requests_make_sense_and_come_in_order(name: str) -> None:
    workload = Workload(name, 200, seed=3, block_tokens=64)
    requests = [checked(request, 64) for request in consistent(workload)]
    assert len(requests) == 200
    assert all(before.time_s <= after.time_s for before, after in pairwise(requests))
    assert all(request.session for request in requests)


@every
def test_the_first_requests_do_not_depend_on_how_many_follow(name: str) -> None:
    assert list(islice(Workload(name, 10**9), 20)) == list(Workload(name, 20))


def test_kinds_of_traffic_differ_in_what_comes_back() -> None:
    reuse = {name: trace_stats(Workload(name, 800)).reuse_ratio for name in WORKLOADS}
    assert reuse["once"] == 0
    assert 0.2 < reuse["chats"] < 0.7
    assert reuse["agents"] > 0.8
    assert reuse["documents"] > 0.3


@pytest.mark.parametrize(
    ("option", "value"), [("name", "chat"), ("requests", 0), ("seed", -1), ("block_tokens", 0), ("requests", "many")]
)
def test_what_cannot_work_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        Workload(**{option: value})
