"""A request inside the simulated engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from kvtide.core.groups import Key
from kvtide.core.match import Match
from kvtide.sim.attention import Layout
from kvtide.sim.tokens import Tokens, stamps
from kvtide.sim.traffic import Arrival


class State(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()
    LOADING = enum.auto()
    RUNNING = enum.auto()
    OVER = enum.auto()


@dataclass(slots=True, eq=False)
class SimRequest:
    """What the engine knows of a request, and what only the model knows: `nodes` and `total_tokens`."""

    id: str
    nodes: tuple[int, ...]
    prompt_tokens: int
    total_tokens: int
    foreseen: bool
    keyed_tokens: int
    keys: list[list[Key]]
    tables: list[list[int]]
    known: int
    """Tokens whose value the host knows."""
    state: State = State.WAITING
    life: int = 0
    """Counts admissions: what was sent to the device in an earlier one is of no use any more."""
    epoch: int = 0
    """Version of the weights that its KV comes from."""
    scheduled: int = 0
    """Tokens whose KV is computed, loaded or on its way."""
    samples_due: int = 0
    """Steps on their way that will each bring a token."""
    told: int = 0
    """Tokens that kvtide was last told of."""
    registered: list[int] = field(default_factory=list)
    """Per group: blocks before this one are known to the pool."""
    room_tokens: int = 0
    """Tokens that the blocks in its tables can hold."""
    device_tokens: int = 0
    resume_at: int = 0
    admission: int = 0
    load_id: int | None = None
    """The transfer that it waits for."""
    load_began_tick: int = 0
    preempted_at_will: int = 0
    being_placed: bool = False
    """Its blocks are being given to it: whoever looks at its tables sees them as they are."""
    match: Match | None = None
    """What the host has offered, for an engine that answers a step later."""
    furthest: int = 0
    """Most tokens that were ever scheduled or known: progress that preemption does not take back."""
    prefix_stamps: list[list[int]] = field(default_factory=list)
    """Per group: the stamp of each of its prefixes, by length, with the weights of `epoch`."""
    stamps: list[list[int]] = field(default_factory=list)
    """Per group: what each full block must hold."""

    @classmethod
    def arrive(cls, arrival: Arrival, name: str, tokens: Tokens, groups: Layout) -> SimRequest:
        """Make the request that an arrival stands for, under some name."""
        request = cls(
            id=name,
            nodes=arrival.nodes,
            prompt_tokens=arrival.prompt_tokens,
            total_tokens=arrival.total_tokens,
            foreseen=arrival.foreseen,
            keyed_tokens=arrival.keyed_tokens,
            keys=[[] for _ in groups],
            tables=[[] for _ in groups],
            known=arrival.prompt_tokens,
            registered=[0] * len(groups),
        )
        request.reveal_keys(tokens, groups)
        return request

    def reveal_keys(self, tokens: Tokens, groups: Layout) -> None:
        """Add the keys of blocks whose tokens are all known now."""
        for group, keys in zip(groups, self.keys, strict=True):
            size = group.block_tokens
            for end in range((len(keys) + 1) * size, min(self.known, self.keyed_tokens) + 1, size):
                keys.append(tokens.keys[self.nodes[end]])

    def begin_life(self, epoch: int, groups: Layout) -> None:
        """Start to compute with these weights."""
        self.life += 1
        if not self.stamps or epoch != self.epoch:
            self.epoch = epoch
            self.prefix_stamps = [stamps(self.nodes, epoch, index) for index in range(len(groups))]
            self.stamps = [
                prefixes[group.block_tokens :: group.block_tokens]
                for group, prefixes in zip(groups, self.prefix_stamps, strict=True)
            ]

    @property
    def schedulable(self) -> int:
        """Tokens that can be scheduled: those known and those that steps on their way will bring."""
        end = self.known + self.samples_due
        # What comes after the last output is never computed, if the engine knows which is the last.
        return min(end, self.total_tokens - 1) if self.foreseen else end
