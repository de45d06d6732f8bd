"""Opening a Valkey tier."""

from __future__ import annotations

from kvtide.errors import ConfigError
from kvtide.tiers.config import TierConfig
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.record import HEADER_BYTES
from kvtide.tiers.valkey.backend import ValkeyBackend
from kvtide.tiers.valkey.options import ValkeyConfig
from kvtide.tiers.watchdog import watched_tier

FAILURES_MAX = 2
OVERDUE_DEADLINES = 20
"""Every wait for the server is bounded; that for the system's name resolution is not."""


def open_tier(config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> QueuedTier:
    """Open the tier for the namespace's rank. A server that cannot be reached is no error: it is tried again later."""
    assert isinstance(config, ValkeyConfig)
    needed = slot_bytes_max + HEADER_BYTES
    if needed > config.max_value:
        raise ConfigError(f"{config.option}.max_value", config.max_value, f"at least {needed}, a block and its header")
    return tier_of(config, namespace)


def tier_of(config: ValkeyConfig, namespace: Namespace, *, calls_max: int = 1024) -> QueuedTier:
    """Make a tier that has tried once to reach its server."""
    return watched_tier(
        ValkeyBackend(config, namespace),
        config,
        failures_max=FAILURES_MAX,
        overdue_deadlines=OVERDUE_DEADLINES,
        calls_max=calls_max,
    )
