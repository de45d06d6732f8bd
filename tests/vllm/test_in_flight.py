"""Steps that are issued and not computed yet, as on a GPU: a copy that does not wait for them meets them (F7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import DeviceCache, Direction, Fence, HostArena
from kvtide.copy.move import BlockMover, Moved
from kvtide.core import Copy
from kvtide.vllm import kv_tensors
from tests.vllm.engines import Control, ControlledEngine
from tests.vllm.test_world import drive, is_caught
from tests.vllm.world import World


class FencedMover(BlockMover):
    """Calls the fence of a copy before its bytes move."""

    def __init__(self, device: DeviceCache, arena: HostArena) -> None:
        super().__init__(device, arena)
        self.fences: dict[int, Fence | None] = {}

    def move(self, direction: Direction, copy: Copy) -> Moved:
        after = self.fences.pop(copy.id)
        if after is not None:
            after()
        return super().move(direction, copy)


class FencedEngine(ControlledEngine):
    """Copies behind fences."""

    def __init__(self, device: DeviceCache, arena: HostArena) -> None:
        super().__init__(device, arena)
        self._mover: FencedMover = FencedMover(device, arena)

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        self._mover.fences[copy.id] = after
        return super().submit(direction, copy, after)


class LateWorld(World):
    """Computes a step when somebody waits for it: the scheduler for what it has sampled, or a copy at its fence."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self._issued: list[tuple[Any, dict[str, tuple[list[int], ...]]]] = []
        self._sampled: list[dict[str, list[int]]] = []
        """What was computed, in the order in which it was issued."""
        self._tables: dict[str, tuple[list[int], ...]] = {}
        self._processed = 0
        monkeypatch.setattr(kv_tensors, "fence", lambda _: self._fence())
        control = options.pop("control", None) or Control(FencedEngine)
        super().__init__(path, control=control, monkeypatch=monkeypatch, asynchronous=True, **options)

    def _fence(self) -> Callable[[], None]:
        issued = len(self._issued)
        return lambda: self.compute(issued)

    def compute(self, steps: int) -> None:
        """Compute the first `steps` steps that were issued."""
        while len(self._sampled) < steps:
            step, self._tables = self._issued[len(self._sampled)]
            self._sampled.append(super()._forward(step))

    def _forward(self, step: Any) -> dict[str, list[int]]:
        blocks = self.scheduler.kv_cache_manager.get_block_ids
        self._issued.append((step, {name: blocks(name) for name in step.num_scheduled_tokens}))
        return {name: [] for name in step.num_scheduled_tokens}

    def _table(self, name: str, group: int) -> list[int]:
        return self._tables[name][group]

    def _process(self, step: Any, output: Any) -> None:
        self._processed += 1
        self.compute(self._processed)
        output.sampled_token_ids = [self._sampled[self._processed - 1][name] for name in output.req_ids]
        super()._process(step, output)


def make(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, mode: str = "eager", **options: Any) -> World:
    control = Control(FencedEngine)
    control.setup["random"] = random.Random(seed)
    return LateWorld(path, monkeypatch, control=control, blocks=40, host_blocks=60, mode=mode, **options)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("seed", range(2))
def test_f7_copies_and_steps_that_were_issued_leave_each_other_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    world = make(tmp_path, monkeypatch, seed, mode)
    drive(world, seed, steps=600)
    world.check_at_rest()
    assert world.manager.metrics.loaded_tokens > 0


def test_f7_a_scheduler_that_gives_out_what_a_step_in_flight_uses_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: loads do not wait for the step in flight, because vLLM keeps its blocks back."""

    def careless(seed: int) -> World:
        world = make(tmp_path, monkeypatch, seed)
        world.scheduler.defer_block_free = False
        return world

    assert is_caught(careless, violation="reads a wrong token")
