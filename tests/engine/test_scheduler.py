"""The scheduler alone: nothing is computed, and copies end when the test says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.groups import NULL_BLOCK
from kvtide.core.match import Match
from kvtide.core.messages import Outcome
from kvtide.engine import BlockPool, EngineStats
from kvtide.engine.config import EngineConfig
from kvtide.engine.keys import extend_keys
from kvtide.engine.offloading import NullManager
from kvtide.engine.request import Request, State
from kvtide.engine.scheduler import Scheduler, Work
from tests.engine.support import BLOCK_TOKENS, prompt, tiny_config


@dataclass
class OfferingManager(NullManager):
    """Has something on the host for some requests, and remembers what it was told."""

    offers: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> Match:
        return Match(request_id, device_tokens, max(0, self.offers.get(request_id, 0) - device_tokens))

    def admit(self, request_id: str, accepted_tokens: int) -> bool:
        self.calls.append(f"admit {request_id}")
        return accepted_tokens > 0

    def give_up(self, request_id: str) -> None:
        self.calls.append(f"give_up {request_id}")

    def preempt(self, request_id: str) -> None:
        self.calls.append(f"preempt {request_id}")


class Bench:
    """A scheduler whose tokens are computed by saying so."""

    def __init__(self, config: EngineConfig, **offers: int) -> None:
        self.config = config
        self.pool = BlockPool(config.device_blocks)
        self.stats = EngineStats()
        self.manager = OfferingManager(offers=offers)
        self.scheduler = Scheduler(config, self.pool, self.manager, self.stats)
        self.requests: dict[str, Request] = {}
        self.finished: list[str] = []

    def add(self, name: str, length: int, max_new_tokens: int = 4, seed: int | None = None) -> Request:
        tokens = prompt(ord(name) if seed is None else seed, length)
        tables: list[list[int]] = [[] for _ in self.config.groups]
        request = Request(name, tokens, length, max_new_tokens, 0.0, tables)
        extend_keys(request.keys, tokens, BLOCK_TOKENS, b"")
        self.requests[name] = request
        self.scheduler.add(request)
        return request

    def step(self) -> dict[str, int]:
        """Do a step; return how many tokens were computed of which request."""
        work = self.scheduler.schedule()
        self.scheduler.slide()
        for item in work:
            self.compute(item)
        return {item.request.id: item.num_tokens for item in work}

    def compute(self, item: Work) -> None:
        request = item.request
        assert all(len(table) * BLOCK_TOKENS >= request.computed + item.num_tokens for table in request.tables)
        self.scheduler.computed(item)
        if not request.remaining:
            request.tokens.append(0)
            extend_keys(request.keys, request.tokens, BLOCK_TOKENS, b"")
            if request.generated == request.max_new_tokens:
                self.scheduler.finish(request)
                self.finished.append(request.id)

    def run(self) -> None:
        for _ in range(1000):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("not idle after 1000 steps")

    def all_free(self) -> bool:
        return self.pool.num_free == self.pool.num_blocks


def test_long_prompts_are_computed_in_chunks_within_the_step_s_budget() -> None:
    bench = Bench(tiny_config(step_tokens=20))
    bench.add("a", 50)
    assert [bench.step() for _ in range(3)] == [{"a": 20}, {"a": 20}, {"a": 10}]


def test_running_requests_come_first_and_new_ones_use_what_they_leave() -> None:
    bench = Bench(tiny_config(step_tokens=20))
    bench.add("a", 10)
    bench.add("b", 30)
    assert [bench.step() for _ in range(3)] == [{"a": 10, "b": 10}, {"a": 1, "b": 19}, {"a": 1, "b": 1}]


def test_requests_are_admitted_in_the_order_of_their_arrival_even_if_later_ones_would_fit() -> None:
    bench = Bench(tiny_config(device_blocks=8, step_tokens=100))
    bench.add("a", 40, 1)
    bench.add("b", 40, 1)
    bench.add("c", 8, 1)
    assert bench.step() == {"a": 40}
    bench.run()
    assert bench.finished == ["a", "b", "c"]


def test_no_more_requests_run_at_a_time_than_allowed() -> None:
    bench = Bench(tiny_config(max_running=2))
    for name in "abc":
        bench.add(name, 5)
    assert bench.step() == {"a": 5, "b": 5}


def test_f13_when_blocks_run_out_the_last_admitted_gives_way_and_all_finish() -> None:
    bench = Bench(tiny_config(device_blocks=7, step_tokens=100))
    bench.add("a", 15, 20)
    bench.add("b", 15, 20)
    bench.run()
    assert bench.stats.preemptions >= 1
    assert "preempt a" not in bench.manager.calls
    assert bench.finished == ["a", "b"]
    assert bench.all_free()


def test_a_preempted_request_keeps_what_it_generated_and_waits_in_front() -> None:
    bench = Bench(tiny_config(device_blocks=7, step_tokens=100))
    bench.add("a", 15, 20)
    second = bench.add("b", 15, 20)
    bench.add("c", 30, 1)
    while not bench.stats.preemptions:
        bench.step()
    assert second.state is State.WAITING
    assert second.generated > 0
    assert (second.tables, second.computed) == ([[]], 0)
    bench.run()
    assert bench.finished == ["a", "b", "c"]


def test_f12_a_request_waits_for_pinned_blocks_instead_of_preempting() -> None:
    bench = Bench(tiny_config(device_blocks=7, step_tokens=100))
    first, second = bench.add("a", 16, 20), bench.add("b", 16, 20)
    bench.step()
    pinned = bench.pool.allocate(3)
    assert pinned is not None
    bench.pool.pin(pinned)
    bench.pool.free(pinned)
    assert bench.step() == {}
    assert (first.state, second.state) == (State.RUNNING, State.RUNNING)
    assert bench.stats.preemptions == 0
    bench.pool.unpin(pinned)
    assert bench.step() == {"a": 1, "b": 1}


def test_requests_that_load_do_not_run_until_the_load_has_ended() -> None:
    bench = Bench(tiny_config(), a=32)
    request = bench.add("a", 40)
    assert bench.step() == {}
    assert request.state is State.LOADING
    assert len(request.tables[0]) == 4
    bench.scheduler.take(Outcome(loaded=("a",)))
    assert bench.step() == {"a": 8}
    assert (bench.stats.loaded_tokens, request.loaded_tokens) == (32, 32)
    assert bench.pool.find(0, request.keys[0]) == request.tables[0][0]


def test_what_is_being_loaded_cannot_be_found_yet() -> None:
    bench = Bench(tiny_config(), a=32)
    request = bench.add("a", 40)
    bench.step()
    assert bench.pool.find(0, request.keys[0]) is None


def test_f8_a_failed_load_is_computed() -> None:
    bench = Bench(tiny_config(window_tokens=20), a=32)
    request = bench.add("a", 40)
    bench.step()
    del bench.manager.offers["a"]
    bench.scheduler.take(Outcome(failed=("a",)))
    assert bench.step() == {"a": 40}
    assert (bench.stats.loads_failed, bench.stats.loaded_tokens, request.loaded_tokens) == (1, 0, 0)


def test_f16_an_outcome_for_a_request_that_is_gone_is_ignored() -> None:
    bench = Bench(tiny_config(), a=32, b=32)
    for name in "ab":
        bench.add(name, 40)
    bench.step()
    for name in "ab":
        bench.scheduler.finish(bench.requests[name])
    bench.scheduler.take(Outcome(loaded=("a",), failed=("b", "never known")))
    assert bench.scheduler.idle
    assert bench.all_free()


def test_f13_a_running_request_waits_for_those_that_load_if_it_is_the_last_that_could_give_way() -> None:
    bench = Bench(tiny_config(device_blocks=9, step_tokens=100), b=40)
    first = bench.add("a", 16, 20)
    second = bench.add("b", 41, 2)
    for _ in range(17):
        assert set(bench.step()) == {"a"}
    assert second.state is State.LOADING
    assert bench.step() == {}  # the fifth block that it needs now is held by the load
    assert first.state is State.RUNNING
    bench.manager.offers.clear()
    bench.scheduler.take(Outcome(loaded=("b",)))
    bench.run()
    assert bench.finished == ["a", "b"]
    assert bench.manager.calls.count("preempt b") == 1


def test_a_load_that_finds_no_room_gives_its_reservation_back() -> None:
    bench = Bench(tiny_config(device_blocks=8, step_tokens=100), b=40)
    bench.add("a", 40, 2)
    bench.step()
    bench.add("b", 41, 2)
    bench.step()
    assert bench.manager.calls == ["admit a", "give_up b"]
    assert bench.requests["b"].tables == [[]]


def test_a_window_needs_only_the_end_of_what_is_loaded() -> None:
    bench = Bench(tiny_config(window_tokens=20), a=64)
    request = bench.add("a", 70)
    bench.step()
    full, window = request.tables
    assert NULL_BLOCK not in full
    assert window[:5] == [NULL_BLOCK] * 5  # token 64 sees back to token 45, which is in block 5
    assert NULL_BLOCK not in window[5:]
    assert len(full) == len(window) == 8


def test_blocks_that_fell_out_of_the_window_are_freed_and_stay_findable() -> None:
    bench = Bench(tiny_config(window_tokens=20, step_tokens=64))
    request = bench.add("a", 70)
    bench.step()
    used = bench.pool.num_blocks - bench.pool.num_free
    assert used == 16
    bench.step()
    assert request.tables[1][:5] == [NULL_BLOCK] * 5
    assert bench.pool.find(1, request.keys[0]) is not None


def test_two_requests_share_the_blocks_of_a_prefix() -> None:
    bench = Bench(tiny_config())
    first = bench.add("a", 40, 9, seed=1)
    bench.step()
    second = bench.add("b", 40, 9, seed=1)
    bench.step()
    assert second.tables[0][:4] == first.tables[0][:4]
    assert second.tables[0][4] != first.tables[0][4]


def test_recomputing_counts_as_prefill_and_generating_as_decode() -> None:
    bench = Bench(tiny_config())
    bench.add("a", 40, 9)
    bench.run()
    assert (bench.stats.prefill_tokens, bench.stats.decode_tokens) == (40, 8)
