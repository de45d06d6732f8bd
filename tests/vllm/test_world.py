"""Random workloads on vLLM's real scheduler and block pool, every byte checked in every step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import Control
from tests.vllm.world import World, chunked, full, sliding, text

LAYOUTS = {
    "full": lambda: [full()],
    "sliding": lambda: [full(), sliding(40), sliding(40)],
    "chunked": lambda: [full(), chunked(64)],
}


def drive(world: World, seed: int, steps: int) -> None:
    """Conversations that share prefixes, aborts, preemptions and resets, for a number of steps."""
    draw = random.Random(seed)
    number = 0
    while world.steps < steps:
        alive = list(world.scheduler.requests)
        if len(alive) < 10 and draw.random() < 0.5:
            conversation = draw.randrange(5)
            tokens = text(conversation, draw.randrange(1, 180))
            if draw.random() < 0.3:
                tokens += text(1000 + number, draw.randrange(1, 40))
            params: dict[str, Any] = {"skip_reading_prefix_cache": True} if draw.random() < 0.05 else {}
            world.add(f"r{number}", tokens, draw.randrange(1, 30), **params)
            number += 1
        if alive and draw.random() < 0.05:
            world.abort(draw.choice(alive))
        if draw.random() < 0.01:
            world.connector.reset_cache()
        if draw.random() < 0.005:
            world.new_weights()
        world.step()
    world.run()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheduling", ["sync", "async", "0.24"])
@pytest.mark.parametrize("seed", range(2))
def test_random_workloads_read_and_store_the_right_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mode: str, layout: str, scheduling: str, seed: int
) -> None:
    control = Control()
    control.setup["random"] = random.Random(seed)
    world = World(
        tmp_path,
        groups=LAYOUTS[layout](),
        blocks=40 if layout == "full" else 72,
        host_blocks=60,
        asynchronous=scheduling == "async",
        old_worker=scheduling == "0.24",
        control=control,
        monkeypatch=monkeypatch,
        mode=mode,
    )
    drive(world, seed, steps=600)
    world.check_at_rest()
    metrics = world.manager.metrics
    assert metrics.loaded_tokens > 0
    assert metrics.stored_blocks > 0
    assert metrics.reports_unknown == metrics.reports_repeated == 0
