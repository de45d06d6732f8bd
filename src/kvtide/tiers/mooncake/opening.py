"""Opening a Mooncake tier."""

from __future__ import annotations

from kvtide.tiers.config import TierConfig
from kvtide.tiers.mooncake.backend import MooncakeBackend
from kvtide.tiers.mooncake.native import load
from kvtide.tiers.mooncake.options import MooncakeConfig
from kvtide.tiers.mooncake.staging import PART_BYTES
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.watchdog import watched_tier

FAILURES_MAX = 1
OVERDUE_DEADLINES = 10
"""A call whose master died comes back after seconds; by then the tier has long been switched off."""


def open_tier(config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> QueuedTier:  # noqa: ARG001 - any will do
    """Open the tier for the namespace's rank. A store that cannot be reached is no error: it is tried again later."""
    assert isinstance(config, MooncakeConfig)
    load(config.deadline_ms)
    return tier_of(config, namespace)


def tier_of(config: MooncakeConfig, namespace: Namespace, *, calls_max: int = 1024) -> QueuedTier:
    """Make a tier that has tried once to reach its store."""
    return watched_tier(
        MooncakeBackend(config, namespace),
        config,
        failures_max=FAILURES_MAX,
        overdue_deadlines=OVERDUE_DEADLINES,
        calls_max=calls_max,
        part_bytes=PART_BYTES,
    )
