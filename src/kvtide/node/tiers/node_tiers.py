"""Tiers of a node: one place below host memory for all engines, outside of their processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from kvtide.copy.shared_arena import SharedArena
from kvtide.copy.slot_places import SlotPlaces
from kvtide.core.config import BelowConfig
from kvtide.core.index.shared import SharedIndex
from kvtide.errors import ConfigError, describe
from kvtide.node.arenas import NodeArena
from kvtide.node.loop import Loop
from kvtide.node.tiers.namespace import tier_namespace
from kvtide.node.tiers.places import TierPlaces
from kvtide.node.tiers.rows import tier_rows
from kvtide.node.tiers.space_tiers import SpaceTiers
from kvtide.tiers.config import TierConfig
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.stack import TierStack, below_of, open_stack

TICK_S = 0.01
"""While something is under way, deadlines are looked at so often."""
CLOSE_S = 5.0
_OPEN_TIMEOUT_S = 20.0
_NO_THREAD = "the system has no thread for them"
Known = Mapping[str, object]
"""What a worker says of its bytes."""


class NodeTiers:
    """All of them, by namespace. Without tiers nothing happens here.

    Raises:
        ConfigError: a folder cannot be had.

    """

    def __init__(self, configs: Sequence[TierConfig], loop: Loop, say: Callable[[str], None]) -> None:
        self._configs = tuple(configs)
        self._loop = loop
        self._say = say
        self._places = TierPlaces(configs)
        self._spaces: dict[str, SpaceTiers] = {}
        self._threads: dict[str, threading.Thread] = {}
        """The last one of each namespace that opens or closes tiers."""
        self._is_due = self._is_ticking = False
        self.after: Callable[[str], None] = lambda _name: None
        """Is told of namespaces in which something has changed."""

    @property
    def below(self) -> BelowConfig | None:
        """What an index has to know of them. None: there are none."""
        return below_of(self._configs)

    def add(
        self,
        name: str,
        index: SharedIndex,
        described: Known,
        parts: Sequence[tuple[NodeArena, Known]],
        share: float,
    ) -> None:
        """A namespace has all of its memory: open its tiers. `share`: how much of the node's memory it has."""
        if not self._configs:
            return
        deadline_s = max(config.deadline_ms for config in self._configs) / 1000
        space = self._spaces[name] = SpaceTiers(index, len(parts), deadline_s)
        if not self._begin(name, lambda: self._open(space, name, described, parts, share)):
            self._opened(space, name, (), _NO_THREAD)

    def remove(self, name: str) -> None:
        """A namespace is given up. Its tiers are closed in a thread; its memory goes when they let go of it."""
        space = self._spaces.pop(name, None)
        if space is not None and not self._begin(name, lambda: self._close(space, name)):
            self._close(space, name)

    def look(self, name: str) -> None:
        """Begin what somebody waits for in one namespace, and take what tiers know at once."""
        space = self._spaces.get(name)
        if space is not None:
            space.drive(time.monotonic(), sinks=False)

    def due(self) -> None:
        """There may be something to do. From any thread."""
        if not self._is_due and self._spaces:
            self._is_due = True
            with contextlib.suppress(OSError):  # the loop has just ended
                self._loop.post(self._drive)

    @property
    def sinking_blocks(self) -> int:
        """Blocks that tiers should have, and do not have yet."""
        return sum(space.sinking_blocks for space in self._spaces.values())

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way, nor left to be done."""
        return all(space.at_rest for space in self._spaces.values())

    def drain(self) -> None:
        """Nothing is stored any more: let everything sink that the tiers should have."""
        for space in self._spaces.values():
            space.drain()
        self._drive()

    def failure(self, name: str) -> str:
        """Return why the tiers of a namespace could not be opened; empty if they could, or may be soon."""
        space = self._spaces.get(name)
        return "" if space is None else space.failure

    def status(self, name: str) -> list[dict[str, object]]:
        """Return the tiers of a namespace, as JSON."""
        space = self._spaces.get(name)
        return [] if space is None else tier_rows(self._configs, space.stats, space.failure)

    def close(self) -> None:
        """Close all tiers, and let others have the folders. The loop has ended. May be called again."""
        end_s = time.monotonic() + _OPEN_TIMEOUT_S
        for thread in self._threads.values():
            thread.join(max(0.0, end_s - time.monotonic()))
        spaces, self._spaces = self._spaces, {}
        for name, space in spaces.items():
            self._close(space, name)
        self._places.close()

    # ------------------------------------------------------------------ in the loop

    def _drive(self) -> None:
        self._is_due = False
        now_s = time.monotonic()
        more = False
        for name, space in list(self._spaces.items()):
            if self._spaces.get(name) is space and space.drive(now_s):  # else it was given up when another one was told
                more = True
                self.after(name)
        if more:
            self.due()
        elif not self._is_ticking and any(space.time_counts for space in self._spaces.values()):
            self._is_ticking = True
            self._loop.later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self._drive()

    def _opened(self, space: SpaceTiers, name: str, stacks: Sequence[TierStack], failure: str) -> None:
        if self._spaces.get(name) is not space:
            return  # it was given up meanwhile, and is being closed
        if failure:
            self._say(f"namespace {name} has no tiers: {failure}")
        space.failure = failure
        space.opened(stacks)
        self.due()

    # ------------------------------------------------------------------ in threads

    def _begin(self, name: str, work: Callable[[], None]) -> bool:
        """Do something that blocks, after what was begun before for the same namespace. False: there is no thread."""
        before = self._threads.get(name)

        def run() -> None:
            if before is not None:
                before.join(_OPEN_TIMEOUT_S)
            work()

        thread = threading.Thread(target=run, name=f"kvtide-tiers-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads[name] = thread
        return True

    def _open(
        self,
        space: SpaceTiers,
        name: str,
        described: Known,
        parts: Sequence[tuple[NodeArena, Known]],
        share: float,
    ) -> None:
        stacks: list[TierStack] = []
        failure = ""
        try:
            configs = self._places.enter(name, share)
            for part, (arena, known) in enumerate(parts):
                namespace = tier_namespace(described, known, arena.description.slot_bytes, len(parts))
                stacks.append(open_part(configs, namespace, part, arena.mapped))
                stacks[-1].tell(self.due)
        except BaseException as error:  # told to the operator: engines serve without tiers
            failure = str(error) if isinstance(error, ConfigError) else describe(error)
            for stack in stacks:
                stack.close(CLOSE_S)
            stacks = []
        space.coming = stacks
        with contextlib.suppress(OSError):  # the loop has just ended
            self._loop.post(lambda: self._opened(space, name, stacks, failure))

    def _close(self, space: SpaceTiers, name: str) -> None:
        if not space.close(CLOSE_S):
            self._say(f"tiers of namespace {name} do not end within {CLOSE_S:g} s")
        with contextlib.suppress(ConfigError):  # the folder is gone: there is nothing to note there
            self._places.leave(name)


def open_part(configs: Sequence[TierConfig], namespace: Namespace, part: int, arena: SharedArena) -> TierStack:
    """Open the tiers of one part, whose blocks are in the slots of an arena, and in its rows if it has any."""
    places = None if arena.unpacked is None else SlotPlaces(arena, arena.unpacked)
    return open_stack(configs, namespace, part, arena.memory, places=places)
