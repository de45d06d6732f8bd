"""Small models, scripted traffic, and copy engines that misbehave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from kvtide.copy import CopyEngine, DeviceCache, Direction, Fence, Finished, HostArena, ThreadedCopyEngine, Traffic
from kvtide.copy.regions import as_bytes
from kvtide.core.messages import Copy
from kvtide.engine import Completion, CopyEngineFactory, Engine, EngineConfig, ModelConfig
from kvtide.engine.offloading import threaded_copy_engine

VOCAB = 96
BLOCK_TOKENS = 8
PLENTY_BLOCKS = 600

Outputs = dict[str, tuple[int, ...]]


def tiny_model(window_tokens: int | None = None) -> ModelConfig:
    return ModelConfig(
        layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, mlp=32, vocab=VOCAB, window_tokens=window_tokens
    )


def tiny_config(
    window_tokens: int | None = None,
    *,
    device_blocks: int = PLENTY_BLOCKS,
    step_tokens: int = 64,
    ranks: int = 1,
    max_running: int = 8,
) -> EngineConfig:
    return EngineConfig(
        model=tiny_model(window_tokens),
        device_blocks=device_blocks,
        block_tokens=BLOCK_TOKENS,
        ranks=ranks,
        step_tokens=step_tokens,
        max_running=max_running,
    )


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


@dataclass(frozen=True)
class Arrival:
    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    steps_before: int
    """Steps between the arrival before and this one."""


@cache
def traffic(seed: int = 0, count: int = 24) -> tuple[Arrival, ...]:
    """Requests that share the beginnings of their prompts, come back to them, and arrive a few at a time."""
    rng = random.Random(seed)
    shared = [prompt(100 + i, 64) for i in range(4)]
    arrivals = []
    for number in range(count):
        head = rng.choice(shared)[: rng.choice([16, 41, 64])]
        tail = prompt(1000 + number, rng.randrange(1, 40))
        arrivals.append(Arrival(f"r{number}", (*head, *tail), rng.randrange(1, 14), rng.randrange(4)))
    return tuple(arrivals)


def play(engine: Engine, arrivals: Iterable[Arrival]) -> dict[str, Completion]:
    """Let requests arrive while the engine steps; return all completions once it is idle."""
    completions: list[Completion] = []
    for arrival in arrivals:
        for _ in range(arrival.steps_before):
            completions += engine.step()
        engine.submit(arrival.request_id, arrival.prompt, arrival.max_new_tokens)
    completions += run_to_idle(engine)
    return {completion.request_id: completion for completion in completions}


def run_to_idle(engine: Engine, steps_max: int = 5000) -> list[Completion]:
    """`Engine.run` with a bound, so that a deadlock is a failure and not a hang."""
    completions: list[Completion] = []
    for _ in range(steps_max):
        if engine.idle:
            return completions
        completions += engine.step()
    raise AssertionError(f"the engine is not idle after {steps_max} steps")


def outputs(completions: Mapping[str, Completion]) -> Outputs:
    return {request_id: completion.tokens for request_id, completion in completions.items()}


@cache
def expected_outputs(window_tokens: int | None, seed: int = 0) -> Outputs:
    """What the traffic's requests give when each is served alone, in one chunk, by an engine of its own."""
    expected = {}
    for arrival in traffic(seed):
        with Engine(tiny_config(window_tokens, step_tokens=1000)) as engine:
            engine.submit(arrival.request_id, arrival.prompt, arrival.max_new_tokens)
            expected.update(outputs({done.request_id: done for done in run_to_idle(engine)}))
    return expected


def ask(engine: Engine, request_id: str, tokens: list[int], max_new_tokens: int = 4) -> Completion:
    """Serve one request until the engine is idle."""
    engine.submit(request_id, tokens, max_new_tokens)
    completions = run_to_idle(engine)
    assert [done.request_id for done in completions] == [request_id]
    return completions[0]


Fails = Callable[[Direction, Copy], bool]


@dataclass
class FaultyCopyEngine(CopyEngine):
    """Copies as told, but fails some transfers (loads leave garbage behind) and reports others late."""

    inner: CopyEngine
    device: DeviceCache
    fails: Fails
    delay_polls: int = 0
    _failed: list[tuple[int, str]] = field(default_factory=list)
    _held: list[Finished] = field(default_factory=list)

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        if not self.fails(direction, copy):
            return self.inner.submit(direction, copy, after)
        if direction is Direction.LOAD:
            self._scribble(copy)
        self._failed.append((copy.id, "injected"))
        return True

    def poll(self) -> Finished:
        done, failed, not_kept = self.inner.poll()
        self._held.append(Finished(done, (*failed, *self._failed), not_kept))
        self._failed = []
        return self._held.pop(0) if len(self._held) > self.delay_polls else Finished()

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        return self.inner.wait(ids, timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        return self.inner.close(timeout_s)

    def traffic(self, direction: Direction) -> Traffic:
        return self.inner.traffic(direction)

    def _scribble(self, copy: Copy) -> None:
        for region in self.device.regions:
            memory = as_bytes(region.buffer)
            for block in copy.blocks:
                begin = region.offset + block * region.block_stride
                memory[begin : begin + region.fragment_bytes] = 0x3F


def faulty(fails: Fails, delay_polls: int = 0, only_rank: int | None = None) -> CopyEngineFactory:
    def make(rank: int, device: DeviceCache, arena: HostArena) -> CopyEngine:
        if only_rank not in (None, rank):
            return threaded_copy_engine(rank, device, arena)
        return FaultyCopyEngine(ThreadedCopyEngine(device, arena), device, fails, delay_polls)

    return make


def check_conservation(engine: Engine) -> None:
    """When nothing runs, nothing is held: neither on the device nor on the host (I5)."""
    assert engine.idle
    assert engine.pool.num_free == engine.pool.num_blocks
    assert engine.pool.num_pinned == 0
    if engine.manager is not None:
        gauges = engine.manager.gauges()
        assert (gauges.slots_pinned, gauges.store_pins, gauges.transfers, gauges.backlog_blocks) == (0, 0, 0, 0)
        assert gauges.slots_free + gauges.slots_cached == gauges.slots
