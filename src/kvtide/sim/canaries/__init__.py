"""Canaries: each takes one guard away, so that the simulator can show that it would notice.

A mutation replaces methods of the core, of the worker, of the stack of tiers, or of the simulated machine's fences and
copy loop, for as long as it is applied. Production code knows nothing of it.
"""

from __future__ import annotations

from kvtide.sim.canaries import (
    below,
    hanging,
    losing_work,
    misunderstandings,
    node,
    node_tiers,
    sharing,
    workers,
    wrong_bytes,
)
from kvtide.sim.canaries.base import BrokenCanary, Canary

CANARIES: tuple[Canary, ...] = tuple(
    member
    for module in (losing_work, wrong_bytes, hanging, misunderstandings, below, workers, sharing, node, node_tiers)
    for member in vars(module).values()
    if isinstance(member, Canary)
)
"""Every fault that the simulator must notice. Some can be let in by more than one door."""

__all__ = ["CANARIES", "BrokenCanary", "Canary"]
