"""Keeps blocks below host memory: on a disk, in a store that several servers share.

A `Tier` is asked and answers later; a `TierStack` does the core's errands on all tiers of a rank. `parse_tiers` reads
the option `tiers`, `open_stack` makes a stack of it. A new kind of place needs only a `Backend`, whose calls block;
`QueuedTier` does the rest. `NullTier` and `FaultyTier` are for tests, also for yours.

docs/engineers/tiers.md says in which order to read these files.
"""

from __future__ import annotations

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import (
    HIT,
    MISS,
    CallResult,
    Item,
    KeyResult,
    Tier,
    TierKey,
    TierStats,
    Verdict,
)
from kvtide.tiers.config import TierConfig, open_tiers, parse_tiers
from kvtide.tiers.faulty import Faults, FaultyBackend, FaultyTier
from kvtide.tiers.memory import MemoryBackend
from kvtide.tiers.namespace import Namespace, hashing_part, unstable_keys
from kvtide.tiers.null import NullTier
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.stack import Level, TierStack, below_of, open_stack

__all__ = [
    "HIT",
    "MISS",
    "Backend",
    "BackendDown",
    "CallResult",
    "Faults",
    "FaultyBackend",
    "FaultyTier",
    "Item",
    "KeyResult",
    "Level",
    "MemoryBackend",
    "Namespace",
    "NullTier",
    "QueuedTier",
    "Tier",
    "TierConfig",
    "TierKey",
    "TierStack",
    "TierStats",
    "Verdict",
    "below_of",
    "hashing_part",
    "open_stack",
    "open_tiers",
    "parse_tiers",
    "unstable_keys",
]
