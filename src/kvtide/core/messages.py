"""What scheduler and workers say to each other. Plain data, small, picklable.

A plan starts transfers: copies between device and host, and errands below host memory. Each has an id, and every rank
reports it once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.core.groups import Key

Name = tuple[int, Key]
"""A block below host memory: its group and its key."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between device and host: device block `blocks[i]` and host slot `slots[i]` belong together."""

    id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    request_id: str = ""
    """Loads: the request that waits for it."""
    filled: bool = True
    """Stores: earlier steps have filled the blocks. False: this step may fill them, so the copy waits for it."""
    life: int = 0
    """Which memory the slots are in: that of this life of the way to a shared index; 0: the engine's own."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Asks which blocks are below host memory. What the tiers do not know within their deadline is a miss (F18)."""

    id: int
    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Brings blocks up: `names[i]` is to be written to host slot `slots[i]`.

    If nothing has come within the tier's deadline, less `waited_s`, the worker reports it as late, and nobody waits
    for it any more (F18). It is still answered, as soon as nothing writes to the slots.
    """

    id: int
    names: tuple[Name, ...]
    slots: tuple[int, ...]
    waited_s: float = 0.0
    """Seconds that the request has waited already, for the lookup."""


@dataclass(frozen=True, slots=True)
class Sink:
    """Lets blocks sink to the tiers that want them now: `slots[i]` holds `names[i]`."""

    id: int
    names: tuple[Name, ...]
    slots: tuple[int, ...]
    leaving: bool = False
    """The host gives the blocks up. Otherwise they have just been stored, or were used for the first time since."""
    used: bool = False
    """They were loaded since they were stored. Tiers that take blocks on their second use want to know."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Empties every tier of this namespace: no errand behind it finds what was there before (F9).

    Answered at once. The worker removes the bytes when it can.
    """

    id: int


Errand = Lookup | Fetch | Sink | Clear
"""What a worker has to do below host memory."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Host slots that a node keeps, and how a worker gets at their memory."""

    life: int
    """What `Copy.life` says of copies there."""
    epoch: str
    """Which life of the node."""
    owner: int
    """Which life of this engine at the node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step asks of every worker."""

    step: int
    loads: tuple[Copy, ...] = ()
    """Host to device. Must not begin before the compute that last read these device blocks has ended (F7)."""
    stores: tuple[Copy, ...] = ()
    """Device to host. Must not begin before the compute that fills these device blocks has ended (F6).

    That is the compute of the steps before this one, and for copies that are not `filled` of this one too. Waiting
    for more costs bandwidth: the link would idle while a long step computes.
    """
    wait_for: tuple[int, ...] = ()
    """Transfers to be waited for (with a deadline) before this step ends: the engine has nothing else to do."""
    errands: tuple[Errand, ...] = ()
    """Below host memory. They touch no device block, so there is nothing to wait for."""
    ask: tuple[int, ...] = ()
    """Transfers that are overdue. A rank that has none of them under way reports that they failed."""
    pool: Pool | None = None
    """Where host slots are from now on; None: in the engine's own memory, or nowhere, while its node is away.

    Said in every step, so that a rank that has missed one hears of it in the next.
    """

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.loads or self.stores or self.wait_for or self.errands or self.ask)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an errand on one rank."""

    id: int
    hits: tuple[int, ...] = ()
    """Positions among its names that were found, have come, or were kept."""
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker says back: copies are done or failed, errands are answered."""

    rank: int
    done: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    """Pairs of id and why: copies that failed, and errands that were asked for and are not under way."""
    slots_ready: int | None = None
    """How many host slots, from slot 0 on, this rank can use by now. None: no news.

    Host memory is pinned in pieces while the engine is already serving, so the pool grows (F20).
    """
    answers: tuple[Answer, ...] = ()
    """Errands that are over. Each is answered once by each rank."""
    late: tuple[int, ...] = ()
    """Fetches that are past their deadline. They go on, but nobody should wait for them."""
    life: int = 0
    """Which memory `slots_ready` is about (`Copy.life`)."""
    not_kept: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Pairs of a store that is `done` and host slots of it that this rank had no place for: they hold nothing."""

    def __bool__(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.done or self.failed or self.slots_ready is not None or self.answers or self.late)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reports meant for requests: the engine goes on with these."""

    loaded: tuple[str, ...] = ()
    """Requests whose load is complete: their tokens count as computed."""
    failed: tuple[str, ...] = ()
    """Requests whose load failed: the tokens have to be computed.

    What their blocks hold is undefined, and where the load needed none of a window's blocks the table has
    NULL_BLOCK: allocate what computing needs, or preempt the request and start again.
    """
    overdue: tuple[str, ...] = ()
    """Those among `failed` whose load may still be copied: its blocks are pinned until that is over.

    Preempt these, so that they get other blocks.
    """
