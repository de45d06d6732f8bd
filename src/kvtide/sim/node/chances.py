"""What is drawn of a world with a node: how many engines there are, and what happens to them, the node and the ways."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtide.sim.below import TierWorld
from kvtide.sim.draw import Draw

NODE_STREAM, NODE_RUN_STREAM, CLEARS_STREAM, LEASES_STREAM, SPARE_STREAM = (1 << bit for bit in range(64, 69))
"""Far from the streams of other worlds."""

RESETS_MAX = 4
"""Of one engine, so that no two models have the same weights."""


@dataclass(frozen=True, slots=True)
class NodeWorld:
    """A node and its engines. Chances are out of 256, for each turn of an engine."""

    engines: int
    models: int
    """Each is a namespace. Their keys are the same, and what is stored under them is not."""
    link_ticks_max: int
    """How long a message is under way."""
    link_slow: int
    """A message takes far longer, and with it all behind it."""
    link_breaks: int
    """A connection breaks, and what is under way on it is lost."""
    engine_dies: int
    """All processes of an engine are killed. Its last copies land later."""
    node_dies: int
    """The node is killed, and comes back empty."""
    remembers: bool
    """Engines remember which keys the node has."""
    node_hangs: int
    """The node hangs: what is said to it waits, for longer than engines do."""
    away_ticks_max: int = 120
    """How long it takes until what was killed is started again."""
    node_clears: int = 0
    """An operator clears a namespace."""
    leased_quarters_max: int = 3
    """Of the slots of a namespace: so much one engine may lease."""
    spare_slots: int = 0
    """So many slots the node keeps free, if it can."""
    tier: TierWorld | None = None
    """What is below the node's memory."""

    @classmethod
    def draw(cls, seed: int) -> NodeWorld:
        """Draw what a node's world is like."""
        draw = Draw(seed, NODE_STREAM)
        return cls(
            engines=draw.pick((2, 2, 3, 4)),
            models=draw.pick((1, 1, 2)),
            link_ticks_max=draw.pick((1, 1, 2, 6)),
            link_slow=draw.pick((0, 0, 4, 32)),
            link_breaks=draw.pick((0, 0, 2, 8)),
            engine_dies=draw.pick((0, 0, 1, 4)),
            node_dies=draw.pick((0, 0, 1, 4)),
            remembers=draw.chance(192),
            node_hangs=draw.pick((0, 0, 1, 4)),
            node_clears=Draw(seed, CLEARS_STREAM).pick((0, 0, 0, 4)),
            leased_quarters_max=Draw(seed, LEASES_STREAM).pick((0, 1, 3, 3)),
            spare_slots=Draw(seed, SPARE_STREAM).pick((0, 0, 1, 3)),
        )

    def without_faults(self) -> NodeWorld:
        """Return the same, where everybody lives and all messages come."""
        return replace(self, link_slow=0, link_breaks=0, engine_dies=0, node_dies=0, node_hangs=0, node_clears=0)

    def whose_links_break(self) -> NodeWorld:
        """Return the same, where only connections break."""
        return replace(self.without_faults(), link_breaks=48, link_ticks_max=1, models=1)

    def whose_node_dies(self) -> NodeWorld:
        """Return the same, where only the node dies, often while engines store, and is back at once."""
        return replace(self.without_faults(), node_dies=4, link_ticks_max=1, away_ticks_max=1)

    def __str__(self) -> str:
        return (
            f"{self.engines} engines of {self.models} models, messages take {self.link_ticks_max} ticks "
            f"(longer {self.link_slow}/256), per turn: connections break {self.link_breaks}/256, engines die "
            f"{self.engine_dies}/256, the node dies {self.node_dies}/256, hangs {self.node_hangs}/256, is cleared "
            f"{self.node_clears}/256; slots kept free: {self.spare_slots}; tiers: {self.tier or 'none'}"
        )


NODE_FAULT_KINDS: tuple[str, ...] = (
    "link_slow",
    "link_breaks",
    "engine_dies",
    "node_dies",
    "node_hangs",
    "node_clears",
    "lands_late",
)
"""What is counted: the last one are copies of killed engines that end after that."""
