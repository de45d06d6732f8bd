"""All counters of one manager."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvtide.core.reasons import NotLoaded, NotStored, NotSunk


@dataclass(slots=True)
class Metrics:
    """Counts since the manager was made. Blocks are counted once, not once per rank."""

    stored_blocks: int = 0
    stores_failed: int = 0
    """Store transfers that failed on at least one rank."""
    evicted_blocks: int = 0
    loaded_blocks: int = 0
    loaded_tokens: int = 0
    loads_failed: int = 0
    """Load transfers that failed on at least one rank."""
    requests: int = 0
    preemptions: int = 0
    """Times that a request had to start again, for whatever reason."""
    resets: int = 0
    reports_unknown: int = 0
    """Reports about transfers that are not, or no longer, in flight (F16)."""
    reports_repeated: int = 0
    """Second reports of one rank about one transfer."""
    transfers_overdue: int = 0
    """Transfers and errands that some rank did not report in time. They are failed."""
    events_lost: int = 0
    not_stored: Counter[NotStored] = field(default_factory=Counter)
    """Blocks that were computed and are not stored, by reason."""
    not_loaded: Counter[NotLoaded] = field(default_factory=Counter)
    """Tokens that were computed and not loaded, by reason."""
    lookups: int = 0
    """Times that a request asked what is below host memory."""
    fetched_blocks: int = 0
    """Blocks that came up from below."""
    fetch_missed_blocks: int = 0
    """Blocks that were found below, and were gone or unreadable when they were fetched."""
    fetches_late: int = 0
    """Fetches that requests stopped to wait for."""
    sunk_blocks: int = 0
    not_sunk: Counter[NotSunk] = field(default_factory=Counter)
    """Blocks that the write policy wanted below, and that are not there, by reason."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state of the pools at one moment."""

    slots: int
    """Host slots that can be used by now."""
    slots_free: int
    slots_cached: int
    """Visible to requests, pinned ones included."""
    slots_writing: int
    """On their way from the device, or waiting to be freed after a reset."""
    slots_pinned: int
    store_pins: int
    """Device blocks that stores keep pinned."""
    transfers: int
    """In flight on at least one rank, without those that are overdue."""
    backlog_blocks: int
    """Waiting for the pin budget."""
    sink_queue_blocks: int = 0
    """Waiting to sink below host memory."""
    searches: int = 0
    """Requests that wait for what is below host memory."""
    transfers_unanswered: int = 0
    """Overdue: not reported by some rank for so long that nobody waits. They keep their pins until it has spoken."""
