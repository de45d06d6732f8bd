"""One namespace of a node: its memory, and the index of what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvtide.core import BelowConfig, Geometry, Group, Metrics, OffloadConfig
from kvtide.core.events import EventStream
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.shared import SharedIndex
from kvtide.core.ledger import Ledger
from kvtide.node.arenas import NodeArena
from kvtide.node.block_sizes import BlockSizes
from kvtide.node.errors import Refused
from kvtide.node.hello import Hello
from kvtide.node.namespaces import is_private, model_of, unlike
from kvtide.node.shares import Budget
from kvtide.units import size_text

_BLOCKS = 1 << 40
"""Of the device, in a geometry that is only there for its groups."""


@dataclass
class Space:
    """One namespace: all who have it write and read the same bytes for the same key."""

    name: str
    description: Mapping[str, object]
    sizes: BlockSizes
    slots: int
    unlike: str
    """In what it differs from the one that was here already and is most like it."""
    index: SharedIndex
    metrics: Metrics
    """What the index counts by itself."""
    budget: Budget
    arenas: dict[int, NodeArena] = field(default_factory=dict)
    known: dict[int, Mapping[str, object]] = field(default_factory=dict)
    """What the worker that was first in each part has said of its bytes."""
    _usable_slots: int = 0
    """That the index knows to be ready."""

    def __str__(self) -> str:
        """For the log."""
        size = f"{self.slots:,} slots of {size_text(self.sizes.slot_bytes)}"
        return f"{model_of(self.description)}, namespace {self.name} ({size})"

    @property
    def nbytes(self) -> int:
        """Its memory."""
        return self.sizes.nbytes(self.slots)

    @property
    def ready_slots(self) -> int:
        """How many slots, from the first on, every part has."""
        if len(self.arenas) < self.sizes.parts:
            return 0
        return min(arena.ready_slots for arena in self.arenas.values())

    def grow(self) -> None:
        """Let the index use what is ready by now."""
        if self._usable_slots < self.slots:
            self._usable_slots = self.ready_slots
            self.index.grow(self._usable_slots)

    def check(self, hello: Hello) -> None:
        """Refuse a worker whose bytes of a block are not those that the others have in this part."""
        who = f"rank {hello.rank} of engine {hello.engine} holds other bytes"
        expected = self.sizes.slots[hello.part]
        block_bytes = hello.namespace.get("block_bytes", expected)
        if block_bytes != expected:
            sizes = f"blocks of {block_bytes!r:.40} bytes in part {hello.part}, not {expected}"
            raise Refused(f"{who} than its scheduler says: {sizes}", for_good=True)
        known = self.known.get(hello.part, hello.namespace)
        if apart := unlike(hello.namespace, [known]):
            raise Refused(f"{who} than those who were here first: in part {hello.part}, {apart}", for_good=True)

    def less(self) -> str:
        """Say how much less memory it has than it may have, because others have it; empty if that is not so."""
        wanted = self.sizes.slots_in(self.budget.each_bytes)
        if self.slots == wanted:
            return ""
        return f"{size_text(self.nbytes)} of {size_text(self.sizes.nbytes(wanted))}: other models have the rest"

    def status(self) -> dict[str, object]:
        """Return it as JSON."""
        arenas = [
            {
                "part": arena.description.part,
                "slots": arena.description.slots,
                "slot_bytes": arena.description.slot_bytes,
                "bytes": arena.description.nbytes,
                "ready_slots": arena.ready_slots,
                "numa_node": arena.numa_node,
                "where": arena.where,
                "pages": arena.pages,
                "failure": arena.failure,
            }
            for _, arena in sorted(self.arenas.items())
        ]
        return {
            "name": self.name,
            "model": model_of(self.description),
            "private": is_private(self.description),
            "description": self.description,
            "bytes": self.nbytes,
            "slots": self.slots,
            "ready_slots": self.ready_slots,
            **self.index.counts(),
            "evicted_blocks": self.metrics.evicted_blocks,
            **self.index.counted.plain(),
            "arenas": arenas,
        }


def make_index(
    groups: tuple[Group, ...], slots: int, policy: str, parts: int, below: BelowConfig | None
) -> tuple[LocalIndex, Metrics]:
    """Return an index of so many slots, none of which is ready. What is below answers for each part."""
    geometry = Geometry(groups=groups, block_bytes=1, device_blocks=slots + _BLOCKS)
    config = OffloadConfig.build(geometry, {"host": slots, "policy": policy}, below)
    metrics = Metrics()
    events = EventStream(enabled=False, metrics=metrics)
    return LocalIndex(config, Ledger(parts, metrics), events, metrics, 0, is_shared=True), metrics
