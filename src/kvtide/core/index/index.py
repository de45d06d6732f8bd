"""What an engine asks of the index of host blocks. In bulk: the index may be in another process.

    look up ──► lease ──► use ──► release        a request that loads
    reserve ──► commit or abandon                blocks that are stored

A request's prefix is looked up in one call, and what was found is leased: it stays until it is released. To store, an
engine says what it has, and is granted slots for what the index lacks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtide.core.chain import Chain
from kvtide.core.groups import Key
from kvtide.core.ledger import Entry
from kvtide.core.match import Lease, Match
from kvtide.core.messages import Errand, Pool
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request

RUN_BLOCKS_MAX = 256
"""Slots are granted in runs of at most this size, and so copied, so that the first ones are visible early."""


Granted = Callable[[list["Grant"]], None]
"""Is told what became of each `Want`."""


@dataclass(slots=True)
class Want:
    """Blocks that an engine has computed and would store."""

    chain: Chain
    """With NULL_BLOCK where the device has no block any more: nothing can be copied from there."""
    needs_prefix: bool
    """What follows a block that the index lacks is of no use."""
    touch: bool
    """The request has ended. The prefix was in use until now, and may wait for slots that are about to be there."""


@dataclass(slots=True)
class Grant:
    """What becomes of a `Want`. Positions are those of its chain."""

    runs: list[Chain] = field(default_factory=list)
    """Parts that have slots now: to be written, and then committed or abandoned."""
    left: list[Chain] = field(default_factory=list)
    """Parts that the index lacks, and that can be asked for again: `room_blocks` had no room, or slots are to come."""
    refused: Counter[NotStored] = field(default_factory=Counter)
    """Blocks that the index lacks and does not take, by reason."""
    gone: list[int] = field(default_factory=list)
    """Positions that the index lacks, without a device block."""
    blocks: int = 0
    """Blocks that were granted."""
    reached: int = 0
    """Up to here everything is known to the index, granted or gone."""


@dataclass(frozen=True, slots=True)
class Fill:
    """How full an index is, in slots."""

    slots: int
    free: int
    cached: int
    pinned: int
    sink_queue_blocks: int = 0
    searches: int = 0


class Index(ABC):
    """The blocks of one namespace."""

    @property
    @abstractmethod
    def pool(self) -> Pool | None:
        """Where the ranks find the memory of its slots, if they have not made that themselves. See `Plan`."""

    @property
    @abstractmethod
    def answer_steps(self) -> int:
        """How many steps later than it was asked a reservation is answered: 0 or 1, if all is well."""

    # ------------------------------------------------------------------ loading

    @abstractmethod
    def look_up(self, request: Request, device_tokens: int, num_tokens: int, pays: Callable[[int], bool]) -> Match:
        """Find what there is beyond `device_tokens` for a request. Changes nothing.

        `pays` says whether loading so many tokens is worth it.
        """

    @abstractmethod
    def lease(self, match: Match) -> Lease:
        """Keep what was just looked up until it is released."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Return a lease."""

    @abstractmethod
    def release_part(self, lease: Lease, keep: list[int]) -> None:
        """Let a lease be one of these slots: some that it has, or what `narrow` has just returned."""

    @abstractmethod
    def narrow(self, request: Request, match: Match, boundary: int) -> Match | None:
        """Return what resuming at `boundary` needs, or None where that cannot be done. Changes nothing.

        `boundary` lies within what was offered, maybe inside a block.
        """

    @abstractmethod
    def is_over(self, held: Lease | Chain) -> bool:
        """Whether nobody is there any more who had leased or granted something: no copy of it may begin."""

    @abstractmethod
    def wait(self, request: Request, match: Match) -> None:
        """Let a request wait for what is below host memory, if the match says so. What was found is leased."""

    @abstractmethod
    def use(self, match: Match) -> None:
        """Tell that what was found is loaded now."""

    @abstractmethod
    def drop(self, request: Request) -> None:
        """A request waits no longer for what is below host memory."""

    # ------------------------------------------------------------------ storing

    @abstractmethod
    def reserve(self, wants: Sequence[Want], room_blocks: int, granted: Granted) -> None:
        """Give slots to what the index lacks, `room_blocks` at most. A key is given to one writer at a time (I7).

        Calls `granted`, once: at once or, where the index is elsewhere, in a later step.
        """

    @abstractmethod
    def settle(self, chains: Sequence[Chain], *, kept: bool) -> bool:
        """Commit what was granted, for every rank has every byte of it, or abandon it.

        Returns False if it came to nothing because nobody is there any more who had granted it.
        """

    @abstractmethod
    def cut(self, run: Chain, keep_blocks: int) -> Chain:
        """Abandon what a run has behind its first blocks, at least one of which is kept; return that."""

    @abstractmethod
    def has(self, group: int, key: Key) -> bool:
        """Whether a key is there or being written, as far as is known here."""

    @abstractmethod
    def is_arriving(self, group: int, key: Key) -> bool:
        """Whether a key is being written, as far as is known here."""

    # ------------------------------------------------------------------ steps

    @abstractmethod
    def receive(self) -> list[Chain]:
        """Take what has been answered since the last step.

        Returns what was to come from elsewhere and has not: it has to be stored after all.
        """

    @abstractmethod
    def plan(self) -> tuple[Errand, ...]:
        """Return what the workers have to do below host memory; from now on answers are expected."""

    @abstractmethod
    def answered(self, errand: Entry) -> list[Chain]:
        """Every rank has answered an errand. Returns what has to be stored after all."""

    @abstractmethod
    def late(self, errand_id: int) -> None:
        """Nobody waits for this errand any longer."""

    @abstractmethod
    def passed(self, seconds: float) -> None:
        """So much time has passed."""

    @abstractmethod
    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""

    @abstractmethod
    def grow(self, slots: int) -> None:
        """Every rank can use the first `slots` slots by now, of the pool that there is."""

    @abstractmethod
    def reset(self, *, below: bool) -> None:
        """Let what waits or is asked for come to nothing: the weights have changed (F9)."""

    @abstractmethod
    def clear(self) -> None:
        """Forget every key, after `reset`."""

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Whether a later step will have something to do here."""

    @property
    @abstractmethod
    def sinking(self) -> bool:
        """Whether blocks wait to sink below host memory."""

    @abstractmethod
    def fill(self) -> Fill:
        """Return how full it is."""
