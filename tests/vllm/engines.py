"""Copy engines that do what a test wants, when it wants it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kvtide.copy import CopyEngine, DeviceCache, Direction, Fence, Finished, HostArena, Region, Traffic
from kvtide.copy.move import BlockMover
from kvtide.core import Copy
from kvtide.vllm import kv_tensors
from kvtide.vllm.options import Copying
from kvtide.vllm.sharing import Sharing


class ControlledEngine(CopyEngine):
    """Copies in the calling thread, in `poll` or at once: held back, late, out of order or failing, as told."""

    def __init__(self, device: DeviceCache, arena: HostArena) -> None:
        self._mover = BlockMover(device, arena)
        self.arena = arena
        self.waiting: dict[int, tuple[Direction, Copy]] = {}
        self._copied: set[int] = set()
        """Those among them whose bytes have moved."""
        self._certain: set[int] = set()
        """Those among them that are announced before they end, and must not fail any more."""
        self.held: set[Direction] = set()
        """Directions in which nothing is copied."""
        self.failing: set[Direction] = set()
        """Directions in which every copy fails."""
        self.random: random.Random | None = None
        """Set: copies move their bytes when they are submitted or in any poll after that, and a few of them fail."""
        self.failure_rate = 0.02
        self.gone: str | None = None
        """Set: the device is lost."""
        self.moved = dict.fromkeys(Direction, 0)

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        self.waiting[copy.id] = direction, copy
        if self.random is not None and direction not in self.held and self.random.random() < 0.5:
            self._copied.add(copy.id)  # as soon as it can be: what compute has not written by now is missing
            self._mover.move(direction, copy)
        return True

    def poll(self) -> Finished:
        done: list[int] = []
        failed: list[tuple[int, str]] = []
        jobs = list(self.waiting.items())
        if self.random is not None:
            self.random.shuffle(jobs)
        for id_, (direction, copy) in jobs:
            if direction in self.held or (self.random is not None and self.random.random() < 0.6):
                continue
            del self.waiting[id_]
            fails = direction in self.failing or (self.random is not None and self.random.random() < self.failure_rate)
            if fails and id_ not in self._certain:
                failed.append((id_, "the test says so"))
            else:
                if id_ not in self._copied:
                    self._mover.move(direction, copy)
                self.moved[direction] += len(copy.blocks)
                done.append(id_)
            self._copied.discard(id_)
            self._certain.discard(id_)
        return Finished(tuple(done), tuple(failed))

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        """Some loads are certain some polls before they end, as those of a GPU are."""
        if self.random is not None:
            for id_, (direction, _) in self.waiting.items():
                if direction is Direction.LOAD and direction not in self.held and self.random.random() < 0.3:
                    self._certain.add(id_)
        return {id_: partial(self._end, id_) for id_ in self._certain}

    def _end(self, id_: int) -> None:
        """What compute waits for: the bytes are there."""
        if id_ not in self._copied:
            self._copied.add(id_)
            self._mover.move(*self.waiting[id_])

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        return not any(id_ in self.waiting for id_ in ids)

    @property
    def lost(self) -> str | None:
        return self.gone

    def close(self, timeout_s: float = 5.0) -> bool:
        return True

    def traffic(self, direction: Direction) -> Traffic:
        return Traffic(bytes=self.moved[direction])


class LateEngine(ControlledEngine):
    """A GPU's order of things at its worst: a load is certain at once, and its bytes move when compute waits for them.

    Compute that does not wait finds whatever was in its blocks. Loads that nobody waits for end in a later poll.
    """

    POLLS = 3

    def __init__(self, device: DeviceCache, arena: HostArena) -> None:
        super().__init__(device, arena)
        self._polls: dict[int, int] = {}

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        self._certain |= {id_ for id_, (direction, _) in self.waiting.items() if direction is Direction.LOAD}
        return super().certain(within_s)

    def poll(self) -> Finished:
        loads = [id_ for id_, (direction, _) in self.waiting.items() if direction is Direction.LOAD]
        self._polls = {id_: self._polls.get(id_, 0) + 1 for id_ in loads}
        early = {id_: self.waiting.pop(id_) for id_, polls in self._polls.items() if polls < self.POLLS}
        finished = super().poll()
        self.waiting.update(early)
        return finished


class Control:
    """Stands in for `kv_tensors.make_copy_engine` and keeps hold of the engines."""

    def __init__(self, kind: type[ControlledEngine] = ControlledEngine) -> None:
        self._kind = kind
        self.engines: list[ControlledEngine] = []
        self.setup: dict[str, Any] = {}

    def make(
        self, stripes: list[kv_tensors.Stripe], blocks: int, slots: int, copying: Copying, sharing: Sharing
    ) -> tuple[CopyEngine, HostArena]:
        regions = [Region(s.memory.numpy(), s.block_stride, s.block_stride, s.offset) for s in stripes]
        cache = DeviceCache(regions, blocks=blocks)
        arena = sharing.open_arena(slots, cache.block_bytes)
        engine = self._kind(cache, arena)
        for name, value in self.setup.items():
            setattr(engine, name, value)
        self.engines.append(engine)
        return engine, arena

    @property
    def engine(self) -> ControlledEngine:
        """The latest engine."""
        return self.engines[-1]
