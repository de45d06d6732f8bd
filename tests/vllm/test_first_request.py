"""On a GPU host memory is pinned while the engine starts and serves. What comes first must not be lost for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtide.vllm import versions
from tests.vllm.engines import ControlledEngine
from tests.vllm.world import BLOCK_TOKENS, World, text


@pytest.mark.parametrize("asynchronous", [False, True])
def test_f20_the_first_request_is_stored_though_it_is_over_after_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    monkeypatch.setattr(versions, "on_gpu", lambda: True)
    monkeypatch.setattr(ControlledEngine, "slots_ready", lambda _: 64)
    world = World(tmp_path, asynchronous=asynchronous, monkeypatch=monkeypatch)
    world.run()
    assert world.manager.gauges().slots == 64, "an idle engine steps once, to hear of them"
    world.generate("first", text(1, 3 * BLOCK_TOKENS), new_tokens=1)
    assert world.manager.metrics.stored_blocks == 3
    assert not world.manager.metrics.not_stored
    world.check_at_rest()


def test_an_engine_whose_workers_say_nothing_of_slots_goes_to_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "on_gpu", lambda: True)
    world = World(tmp_path, monkeypatch=monkeypatch)
    world.run(steps=3)
    world.check_at_rest()
