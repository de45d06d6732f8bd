"""The core decides: a state machine with events in and plans out. No I/O, no threads, no clock, no randomness.

Start reading at `manager.py`. It imports nothing but the standard library.
"""

from __future__ import annotations

from kvtide.core.config import OPTIONS, BelowConfig, Geometry, Mode, OffloadConfig
from kvtide.core.device import BlockContent, DevicePool, FreeBlock
from kvtide.core.events import Cleared, EventsLost, Removed, Stored
from kvtide.core.eviction import POLICIES, EvictionPolicy
from kvtide.core.groups import (
    NULL_BLOCK,
    ChunkedLocal,
    FullAttention,
    Group,
    Key,
    SlidingWindow,
    StateSpace,
    common_boundary,
    longest_resumable,
)
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Answer, Clear, Copy, Errand, Fetch, Lookup, Name, Outcome, Plan, Pool, Report, Sink
from kvtide.core.metrics import Gauges, Metrics
from kvtide.core.reasons import NotLoaded, NotStored, NotSunk

__all__ = [
    "NULL_BLOCK",
    "OPTIONS",
    "POLICIES",
    "Answer",
    "BelowConfig",
    "BlockContent",
    "ChunkedLocal",
    "Clear",
    "Cleared",
    "Copy",
    "DevicePool",
    "Errand",
    "EventsLost",
    "EvictionPolicy",
    "Fetch",
    "FreeBlock",
    "FullAttention",
    "Gauges",
    "Geometry",
    "Group",
    "Key",
    "Lookup",
    "Match",
    "Metrics",
    "Mode",
    "Name",
    "NotLoaded",
    "NotStored",
    "NotSunk",
    "OffloadConfig",
    "OffloadManager",
    "Outcome",
    "Plan",
    "Pool",
    "Removed",
    "Report",
    "Sink",
    "SlidingWindow",
    "StateSpace",
    "Stored",
    "common_boundary",
    "longest_resumable",
]
