"""Several engines on one node, in any order of events: bytes are right, and in the end nobody holds anything."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from kvtide.core import FullAttention, SlidingWindow
from tests.core.index.bench import config_of
from tests.memory_node import MemoryLink, MemoryNode
from tests.support import FakeRequest, NoRoomError, World, text

LAYOUTS = [(FullAttention(4),), (FullAttention(4), SlidingWindow(4, 7))]


class Engines:
    """Two engines that do one thing after the other, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        groups = self.random.choice(LAYOUTS)
        slots = self.random.choice([4, 12, 40])
        self.node = MemoryNode(config_of(groups, slots))
        self.worlds = [
            World(
                groups=groups,
                node=self.node,
                later=self.random.random() < 0.5,
                host_blocks=slots,
                device_blocks=24,
                mode=self.random.choice(["eager", "lazy"]),
            )
            for _ in range(2)
        ]
        self.serial = 0

    def link(self, world: World) -> MemoryLink:
        assert world.link is not None
        return world.link

    def act(self) -> None:
        world = self.random.choice(self.worlds)
        acts = [self.begin] * 4 + [self.go_on] * 6 + [self.step] * 6 + [self.copy] * 4
        acts += [self.forget] * 3 + [self.stop, self.break_link, self.pass_time, self.restart]
        with suppress(NoRoomError):
            self.random.choice(acts)(world)

    def begin(self, world: World) -> None:
        self.serial += 1
        world.begin(f"r{self.serial}", text(self.random.choice("abc"), self.random.randrange(6, 30)))

    def placed(self, world: World) -> list[FakeRequest]:
        return [request for request in world.requests.values() if request.placed and not request.loading]

    def go_on(self, world: World) -> None:
        for request in self.placed(world)[:1]:
            world.compute(request, min(len(request.tokens), request.computed + 9))
            world.slide(request)
            if request.computed == len(request.tokens):
                world.finish(request)

    def step(self, world: World) -> None:
        world.plan()
        world.report()

    def copy(self, world: World) -> None:
        for pending in list(world.pending.values())[:2]:
            world.run(pending.copy, why="torn" if self.random.random() < 0.2 else None)

    def forget(self, world: World) -> None:
        world.fill_device()

    def stop(self, world: World) -> None:
        for request in list(world.requests.values())[:1]:
            if request.placed and self.random.random() < 0.5:
                world.preempt(request)
            else:
                world.finish(request)

    def break_link(self, world: World) -> None:
        link = self.link(world)
        if link.life is not None and self.random.random() < 0.5:
            link.go_away()
        if self.random.random() < 0.7:
            link.come()

    def pass_time(self, world: World) -> None:
        world.manager.passed(self.random.choice([0.01, 0.3]))

    def restart(self, world: World) -> None:
        if self.random.random() < 0.2:
            self.node.restart()

    def end(self) -> None:
        """Let all come to rest, and check that nothing is left."""
        for world in self.worlds:
            for request in list(world.requests.values()):
                world.finish(request)
        for _ in range(100):
            for world in self.worlds:
                world.step(idle=True)
            if not any(world.manager.busy for world in self.worlds):
                break
        for world in self.worlds:
            assert not world.manager.busy
            assert world.pool.num_free == world.pool.num_blocks
            self.link(world).check_at_rest()
        for space in self.node.space_of.values():
            fill = space.local.fill()
            assert (fill.pinned, fill.free + fill.cached) == (0, fill.slots)
            assert space.shared.calls_unknown == 0
            assert space.shared.quarantined_slots == 0


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_bytes_are_right_and_in_the_end_nobody_holds_anything(seed: int) -> None:
    engines = Engines(seed)
    for _ in range(120):
        engines.act()
        for world in engines.worlds:
            if engines.link(world).life is not None:
                for name in "abc":
                    world.check_visible(text(name, 30)[: 4 * 7])
    engines.end()
