"""What an engine and a shared index say to each other. Plain data, like the plan and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvtide.core.chain import Chain
from kvtide.core.groups import Key
from kvtide.core.match import Piece
from kvtide.core.reasons import NotLoaded, NotStored

OFFERS_MAX = 1 << 16
"""Chains that slots can be asked for in one call: others wait while it is answered."""

# ---------------------------------------------------------------------- what engines say


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look a prefix up, and lease what is there. Answered by `Found`."""

    id: int
    keys: Sequence[Sequence[Key]]
    """Per group, as far as the request's tokens are known."""
    device_tokens: int
    num_tokens: int
    firsts: Sequence[int] = ()
    """So many keys of each group nobody will look at: the device has their blocks."""
    computed_tokens: int = 0
    computed_s: float = 0.0
    """What the last step of this engine computed, if that was told since it asked last: whether waiting for what is
    below host memory pays is decided where that is known.
    """


@dataclass(frozen=True, slots=True)
class Again:
    """Ask whether a look-up that `waits` is over. Answered by `Found`."""

    id: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody wants to know any more what a look-up finds that `waits`."""

    id: int


@dataclass(frozen=True, slots=True)
class Release:
    """Return a lease. `used`: it was loaded from."""

    lease: int
    used: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """A chain that an engine has. See `Want`."""

    group: int
    keys: Sequence[Key]
    parent: Key | None
    end_tokens: int
    gone: Sequence[int]
    """Positions that the device has no block of any more."""
    needs_prefix: bool
    touch: bool


@dataclass(frozen=True, slots=True)
class Reserve:
    """Give slots to what is lacking of these, `room_blocks` at most. Answered by `Reserved`."""

    id: int
    offers: Sequence[Offer]
    room_blocks: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Runs that were granted are written, or come to nothing."""

    runs: Sequence[int]
    kept: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Of a run that was granted only the first blocks will be written."""

    run: int
    keep_blocks: int


@dataclass(frozen=True, slots=True)
class Ready:
    """How many slots, from slot 0 on, all ranks of this engine can use by now."""

    slots: int


Call = LookUp | Again | Drop | Release | Reserve | Settle | Cut | Ready
"""What an engine says. Calls of one engine arrive in order, or not at all."""

# ---------------------------------------------------------------------- what the index answers


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up found. See `Match`."""

    id: int
    tokens: int = 0
    pieces: tuple[Piece, ...] = ()
    missed: Mapping[NotLoaded, int] = field(default_factory=dict)
    lease: int | None = None
    """To be released, once. None: nothing is leased."""
    waits: bool = False
    """More may be below host memory, and is being brought up: ask again, or drop it. Nothing is leased yet."""


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of an offer that may be written."""

    id: int
    first: int
    """Position of the first one."""
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of an offer. See `Grant`."""

    runs: Sequence[Run]
    left: Sequence[tuple[int, int]]
    """Where parts begin and end for which there was no room."""
    refused: Mapping[NotStored, int]
    gone: Sequence[int]
    reached: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """What became of each offer."""

    id: int
    taken: Sequence[Taken]


@dataclass(frozen=True, slots=True)
class Unkept:
    """Somebody else was writing these, and has not: whoever has the bytes may store them (I14)."""

    chain: Chain


Reply = Found | Reserved | Unkept
"""What the index says to an engine."""
