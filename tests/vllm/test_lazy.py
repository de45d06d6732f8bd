"""Lazy mode on vLLM's real scheduler: what the device evicts is on the host by then, or counted as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import Direction
from kvtide.core import NotStored
from tests.support import host_of
from tests.vllm.engines import Control
from tests.vllm.test_scenarios import hold, release
from tests.vllm.world import BLOCK_TOKENS, World, full, sliding, text


class Books:
    """Every block that was computed, by group and key, and what has become of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._computed: set[tuple[int, bytes]] = set()

    def generate(self, number: int, blocks: int) -> None:
        """Run a request that nobody has asked before, of whole blocks and a bit."""
        name = f"request {number}"
        request = self._world.add(name, text(1_000 + number, blocks * BLOCK_TOKENS + 3), new_tokens=2)
        keys = self._world.side._requests.known[name].keys
        while name not in self._world.done:
            self._world.step()
        assert request.num_tokens < (blocks + 1) * BLOCK_TOKENS
        self._computed.update((group, bytes(key)) for group, of_group in enumerate(keys) for key in of_group)

    @property
    def lost(self) -> int:
        """Blocks that neither the device nor the host has."""
        host, device = host_of(self._world.manager), self._world.side._device
        return sum(device.find(group, key) is None and not host.has(group, key) for group, key in self._computed)

    @property
    def counted(self) -> dict[NotStored, int]:
        return dict(self._world.manager.metrics.not_stored)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**options: Any) -> World:
        return World(tmp_path, mode="lazy", control=Control(), monkeypatch=monkeypatch, **options)

    return make


@pytest.mark.parametrize("groups", [[full()], [full(), sliding(40)]], ids=["one group", "two groups"])
def test_f4_what_the_device_takes_before_it_is_stored_is_counted(make: Any, groups: list[Any]) -> None:
    world = make(groups=groups, blocks=24, pin_budget=2)
    books = Books(world)
    hold(world, Direction.STORE)
    for number in range(8):
        books.generate(number, blocks=5)
    assert books.lost > 0, "few blocks are pinned, and the others have to go"
    assert books.counted == {NotStored.EVICTED_FROM_DEVICE: books.lost}
    release(world)
    world.run()
