"""A transfer in flight, as an observer sees it."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.sim.request import SimRequest


@dataclass(slots=True, eq=False)
class Flight:
    """A transfer from the plan that names it to the last rank's first word about it."""

    id: int
    is_store: bool
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    stamps: list[int]
    """What each pair must carry."""
    ranks_left: int
    """Bit r is set while rank r has not spoken."""
    failed: bool = False
    request: SimRequest | None = None
    life: int = 0
    """For loads: the request, and which of its lives."""
    orphaned: bool = False
    """There was a reset since: it comes to nothing."""
