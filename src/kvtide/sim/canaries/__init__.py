"""Canaries: each takes one guard away, so that the simulator can show that it would notice.

A mutation replaces methods of the core's classes, or of the simulated machine's fences and copy loop, for as long as
it is applied. Production code knows nothing of it.
"""

from __future__ import annotations

from kvtide.sim.canaries.base import BrokenCanary, Canary
from kvtide.sim.canaries.below import BELOW
from kvtide.sim.canaries.hanging import HANGING
from kvtide.sim.canaries.losing_work import LOSING_WORK
from kvtide.sim.canaries.misunderstandings import MISUNDERSTANDINGS
from kvtide.sim.canaries.wrong_bytes import WRONG_BYTES

CANARIES: tuple[Canary, ...] = LOSING_WORK + WRONG_BYTES + HANGING + MISUNDERSTANDINGS + BELOW
"""Every fault that the simulator must notice. Some can be let in by more than one door."""

__all__ = ["CANARIES", "BrokenCanary", "Canary"]
