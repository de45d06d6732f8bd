"""The façade: events in, plans out. (Signatures first; see docs/architecture.md.)"""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import Key
from kvtide.core.wire import Outcome, Plan, Report


class OffloadManager:
    """Decides what is stored, loaded and evicted. No I/O, no threads, no clock.

    An engine reports what happens to its requests and asks for one plan per step:

        add_request → match → reserve → admit → advance … advance → finish
                        ↑        └ give_up       └ preempt (back to match)

        every step:  plan() → workers copy → report(each worker's report)
    """

    def __init__(self, config: OffloadConfig, device: DevicePool) -> None: ...

    def add_request(self, request_id: str, keys: Sequence[Sequence[Key]], blocks: Sequence[Sequence[int]]) -> None:
        """Make a request known.

        `keys[g]` and `blocks[g]` are live: the engine's own lists for group `g`, which kvtide reads inside its
        calls and never changes. `keys[g]` grows as tokens become known (full blocks only); `blocks[g]` is the
        block table, with NULL_BLOCK where a block is not needed any more.
        """

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> "Match":
        """Find what the host has for a request beyond `device_tokens`. Changes nothing. `.tokens` is the offer."""

    def reserve(self, match: "Match") -> None:
        """Keep what `match` found until `admit`, `give_up`, `preempt`, `finish` or the next `reserve` (F11)."""

    def give_up(self, request_id: str) -> None:
        """Drop the reservation: the engine could not place the request now."""

    def admit(self, request_id: str, accepted_tokens: int) -> bool:
        """Tell that the engine has allocated blocks and takes `accepted_tokens` of the offer (may be 0, or fewer).

        Returns whether a load is under way: then the request must not run until `report` names it.
        """

    def advance(self, request_id: str, computed_tokens: int) -> None:
        """Tell that the KV of the first `computed_tokens` tokens has really been computed (no placeholders)."""

    def preempt(self, request_id: str) -> None:
        """Tell that the engine takes the request's blocks away; it will be matched again later.

        To be called before the blocks are freed.
        """

    def finish(self, request_id: str) -> None:
        """Tell that the request is over (done or aborted, in whatever state). Call before its blocks are freed."""

    def plan(self, *, idle: bool = False) -> Plan:
        """Return this step's plan. `idle`: nothing to compute, so workers may wait for the oldest transfer."""

    def report(self, report: Report) -> Outcome:
        """Take a worker's report; returns the requests whose loads are complete or failed."""

    def reset(self) -> None:
        """Forget everything that is cached: the weights have changed (F9). Copies in flight come to nothing."""

    @property
    def busy(self) -> bool:
        """Whether transfers are in flight or waiting to be planned, so an idle engine must go on stepping."""
