"""A transfer in flight, as an observer sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvtide.sim.request import SimRequest

Kind = Literal["store", "load", "fetch", "sink", "lookup", "clear"]


@dataclass(slots=True, eq=False)
class Flight:
    """A transfer from the plan that names it to the last rank's first word about it."""

    id: int
    kind: Kind
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
    missed: set[int] = field(default_factory=set)
    """Positions that at least one rank has not got."""
    relied_on: set[int] = field(default_factory=set)
    """Fetches: contents that somebody has computed meanwhile, and that are not stored because they are to come."""
    since_s: float = 0.0
    """When it was planned, by the time that the engine tells."""
    since_tick: int = 0
    """When it was planned, by the clock of the machine."""
    leaving: bool = False
    """Sinks: the host has given these slots up."""
    is_store: bool = field(init=False)
    writes_host: bool = field(init=False)
    """Whether it brings blocks from the device to the host, and whether it writes to host slots at all."""

    def __post_init__(self) -> None:
        self.is_store = self.kind == "store"
        self.writes_host = self.kind in ("store", "fetch")
