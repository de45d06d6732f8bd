"""Opening a Valkey tier."""

from __future__ import annotations

import random
import time

from kvtide.errors import ConfigError
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.base import Tier
from kvtide.tiers.breaker import Breaker
from kvtide.tiers.config import TierConfig
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.record import HEADER_BYTES
from kvtide.tiers.valkey.backend import ValkeyBackend
from kvtide.tiers.valkey.options import ValkeyConfig
from kvtide.tiers.watchdog import WatchedBackend, WatchingBreaker

FAILURES_MAX = 2
OVERDUE_DEADLINES = 20
"""Every wait for the server is bounded; that for the system's name resolution is not."""


def open(  # noqa: A001 - what `kvtide.tiers.config` asks of a type
    config: TierConfig,
    namespace: Namespace,
    rank: int,  # noqa: ARG001 - it is part of the namespace
    slot_bytes_max: int,
) -> Tier:
    """Open the tier for one rank. A server that cannot be reached is no error: it is tried again later."""
    assert isinstance(config, ValkeyConfig)
    if slot_bytes_max + HEADER_BYTES > config.max_value_bytes:
        needed = slot_bytes_max + HEADER_BYTES
        raise ConfigError(
            f"{config.option}.max_value", config.max_value_bytes, f"at least {needed}, a block and its header"
        )
    return tier_of(config, namespace)


def tier_of(config: ValkeyConfig, namespace: Namespace, *, calls_max: int = 1024) -> QueuedTier:
    """Make a tier that has tried once to reach its server."""
    backend = ValkeyBackend(config, namespace)
    overdue_s = OVERDUE_DEADLINES * config.deadline_ms / 1000
    watched = WatchedBackend(backend, config.place, overdue_s=overdue_s, clock=time.monotonic)
    breaker = Breaker(time.monotonic, failures_max=FAILURES_MAX, jitter=random.random)
    try:
        with watched.watch(may_take_long=True):
            backend.join()
    except BackendDown:
        breaker.failed()
    return QueuedTier(
        watched,
        threads=config.threads,
        calls_max=calls_max,
        breaker=WatchingBreaker(breaker, watched),
        name=f"valkey-{config.index}",
    )
