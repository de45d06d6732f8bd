"""What scheduler and workers say to each other. Plain data, small, picklable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copy:
    """One transfer as a worker sees it: device block `blocks[i]` and host slot `slots[i]` belong together."""

    id: int
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    request_id: str = ""
    """Loads: the request that waits for it."""
    filled: bool = True
    """Stores: earlier steps have filled the blocks. False: this plan's own step may, so it has to be waited for."""


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

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.loads or self.stores or self.wait_for)


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker says back. Each transfer is reported once by each rank, as done or as failed."""

    rank: int
    done: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    """Pairs of transfer id and why it failed."""
    slots_ready: int | None = None
    """How many host slots, from slot 0 on, this rank can use by now. None: no news.

    Host memory is pinned in pieces while the engine serves already (F20), so the pool grows.
    """

    def __bool__(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.done or self.failed or self.slots_ready is not None)


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
