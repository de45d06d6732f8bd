"""All numbers of one manager. What each one means is beside its name, and is what operators read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from kvtide.core.reasons import NotLoaded, NotStored, NotSunk


@dataclass(slots=True)
class Metrics:
    """Counts since the manager was made. Blocks are counted once, not once per rank."""

    stored_blocks: Annotated[int, "Blocks stored in host memory."] = 0
    stores_failed: Annotated[int, "Store transfers that failed on at least one rank."] = 0
    evicted_blocks: Annotated[int, "Blocks evicted from host memory."] = 0
    loaded_blocks: Annotated[int, "Blocks loaded from host memory."] = 0
    loaded_tokens: Annotated[int, "Tokens loaded from host memory instead of being computed."] = 0
    loads_failed: Annotated[int, "Loads that failed on at least one rank; the requests were computed."] = 0
    requests: Annotated[int, "Requests that kvtide has seen."] = 0
    preemptions: Annotated[int, "Requests that the engine preempted."] = 0
    """Not those that start again after a failed load."""
    resets: Annotated[int, "Times that the cache was emptied."] = 0
    reports_unknown: Annotated[int, "Reports about transfers that are not in flight."] = 0
    """Or no longer (F16)."""
    reports_repeated: Annotated[int, "Second reports of one rank about one transfer."] = 0
    transfers_overdue: Annotated[int, "Transfers that some rank did not report in time."] = 0
    """Errands too. They are failed."""
    events_lost: Annotated[int, "KV cache events that nobody took in time."] = 0
    not_stored: Annotated[Counter[NotStored], "Blocks that were computed and are not stored, by reason."] = field(
        default_factory=Counter
    )
    not_loaded: Annotated[Counter[NotLoaded], "Tokens that were computed and not loaded, by reason."] = field(
        default_factory=Counter
    )
    lookups: Annotated[int, "Times that a request asked what is below host memory."] = 0
    fetched_blocks: Annotated[int, "Blocks that came up from below host memory."] = 0
    fetch_missed_blocks: Annotated[int, "Blocks that were found below host memory and gone when they were fetched."] = 0
    """Or could not be read."""
    fetches_late: Annotated[int, "Fetches from below host memory that requests stopped waiting for."] = 0
    sunk_blocks: Annotated[int, "Blocks that went below host memory."] = 0
    not_sunk: Annotated[Counter[NotSunk], "Blocks that should be below host memory and are not, by reason."] = field(
        default_factory=Counter
    )


@dataclass(frozen=True, slots=True)
class Gauges:
    """The state of the pools at one moment."""

    slots: Annotated[int, "Host slots of each rank."]
    """Those that can be used by now."""
    slots_free: Annotated[int, "Host slots that hold nothing."]
    slots_cached: Annotated[int, "Host slots whose block can be loaded."]
    """Pinned ones included."""
    slots_writing: Annotated[int, "Host slots that are being written."]
    """On their way from the device, or waiting to be freed after a reset."""
    slots_pinned: Annotated[int, "Host slots that cannot be evicted now."]
    store_pins: Annotated[int, "Device blocks that stores keep from being reused."]
    transfers: Annotated[int, "Transfers in flight."]
    """On at least one rank, without those that are overdue."""
    backlog_blocks: Annotated[int, "Blocks that wait to be stored because too many are pinned."]
    sink_queue_blocks: Annotated[int, "Blocks that wait to go below host memory."] = 0
    searches: Annotated[int, "Requests that wait for what is below host memory."] = 0
    transfers_unanswered: Annotated[
        int, "Overdue transfers that some rank has not answered for: nothing is loaded or stored."
    ] = 0
    """They keep their pins until it has spoken."""
