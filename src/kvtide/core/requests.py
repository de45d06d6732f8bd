"""Requests as the core sees them: a small state machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kvtide.core.groups import Group, Key
from kvtide.core.match import Lease, Match
from kvtide.errors import ProtocolError


class State(Enum):
    """Where a request stands."""

    WAITING = auto()
    """Known; holds no device blocks that kvtide cares about."""
    RESERVED = auto()
    """Something was found for it on the host and is kept for it."""
    LOADING = auto()
    """A load writes to its device blocks."""
    RUNNING = auto()
    """The engine computes its tokens."""


class RequestEvent(Enum):
    """What the engine or a report says about a request."""

    RESERVE = auto()
    GIVE_UP = auto()
    ADMIT = auto()
    ADMIT_WITH_LOAD = auto()
    LOAD_ENDED = auto()
    ADVANCE = auto()
    PREEMPT = auto()


TRANSITIONS: dict[State, dict[RequestEvent, State]] = {
    State.WAITING: {
        RequestEvent.RESERVE: State.RESERVED,
        RequestEvent.GIVE_UP: State.WAITING,
        RequestEvent.ADMIT: State.RUNNING,
        RequestEvent.PREEMPT: State.WAITING,
    },
    State.RESERVED: {
        RequestEvent.RESERVE: State.RESERVED,
        RequestEvent.GIVE_UP: State.WAITING,
        RequestEvent.ADMIT: State.RUNNING,
        RequestEvent.ADMIT_WITH_LOAD: State.LOADING,
        RequestEvent.PREEMPT: State.WAITING,
    },
    State.LOADING: {
        RequestEvent.LOAD_ENDED: State.RUNNING,
        RequestEvent.PREEMPT: State.WAITING,
    },
    State.RUNNING: {
        RequestEvent.ADVANCE: State.RUNNING,
        RequestEvent.PREEMPT: State.WAITING,
    },
}
"""What may follow what. Finishing is possible in every state and removes the request."""


@dataclass(slots=True, eq=False)
class Search:
    """A request waits for what may be below host memory. It does so at most once."""

    request: Request
    device_tokens: int
    limit: int
    """Up to where it could resume: one token is left to compute."""
    errands: set[int] = field(default_factory=set)
    """What it waits for: one lookup, or fetches."""
    slots: list[int] = field(default_factory=list)
    """What has come for it, pinned until it is matched again."""
    over: bool = False
    late: bool = False
    """A tier was too slow."""

    @property
    def on_host(self) -> int:
        """Up to where it could resume with what is reserved for it."""
        reservation = self.request.reservation
        return self.device_tokens + (reservation.tokens if reservation is not None else 0)


@dataclass(slots=True, eq=False)
class Request:
    """A request that the engine has made known and not finished."""

    id: str
    keys: Sequence[Sequence[Key]]
    """Live, owned by the engine: per group, the keys of the blocks whose tokens are all known."""
    blocks: Sequence[Sequence[int]]
    """Live, owned by the engine: per group, the block table."""
    state: State = State.WAITING
    computed_tokens: int = 0
    furthest_tokens: int = 0
    """The most that were ever computed: when it is preempted it begins again."""
    got_further: bool = False
    """Since it was preempted last."""
    considered: list[int] = field(default_factory=list)
    """Per group: blocks before this one have been stored, or left for the flush at the end."""
    asking: bool = False
    """The index has not said yet which of its new blocks it takes."""
    storing_decided: list[int] = field(default_factory=list)
    """Per group: for blocks before this one it is decided whether they may be stored (`admission`)."""
    storable: list[int] = field(default_factory=list)
    """Per group: blocks before this one may be stored."""
    reservation: Match | None = None
    lease: Lease | None = None
    """What keeps the reservation."""
    load_id: int | None = None
    load_failed: bool = False
    """A load of this request failed: it is not tried again."""
    search: Search | None = None
    stale: bool = False
    """It holds KV from before a reset: nothing of it may be stored."""

    def __post_init__(self) -> None:
        """Start with nothing considered."""
        self.considered = [0] * len(self.keys)
        self.storing_decided = [0] * len(self.keys)
        self.storable = [0] * len(self.keys)

    def full_blocks(self, index: int, group: Group) -> int:
        """Return how many blocks of a group are computed and have a key. Placeholder tokens have none."""
        return min(self.computed_tokens // group.block_tokens, len(self.keys[index]))

    def handle(self, event: RequestEvent) -> None:
        """Change state; an event that has no meaning now is a bug in the engine's integration."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise ProtocolError(f"request {self.id!r} is {self.state.name}: {event.name} has no meaning here")
        self.state = following
