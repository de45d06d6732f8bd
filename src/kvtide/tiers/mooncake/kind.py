"""Opening a Mooncake tier."""

from __future__ import annotations

import random
import time

from kvtide.tiers.backend import BackendDown
from kvtide.tiers.breaker import Breaker
from kvtide.tiers.config import TierConfig
from kvtide.tiers.mooncake.backend import MooncakeBackend
from kvtide.tiers.mooncake.native import load
from kvtide.tiers.mooncake.options import MooncakeConfig
from kvtide.tiers.mooncake.staging import PART_BYTES
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.watchdog import WatchedBackend, WatchingBreaker

OVERDUE_DEADLINES = 10
"""A call whose master died comes back after seconds; by then the tier has long been switched off."""


class MooncakeTier(QueuedTier):
    """A tier that can be told of the memory that blocks come from and go to."""

    def __init__(self, config: MooncakeConfig, namespace: Namespace, *, calls_max: int = 1024) -> None:
        self._mooncake = MooncakeBackend(config, namespace)
        overdue_s = OVERDUE_DEADLINES * config.deadline_ms / 1000
        watched = WatchedBackend(self._mooncake, config.place, overdue_s=overdue_s, clock=time.monotonic)
        breaker = Breaker(time.monotonic, failures_max=1, jitter=random.random)
        try:
            with watched.watch(may_take_long=True):
                self._mooncake.join()
        except BackendDown:
            breaker.failed()
        super().__init__(
            watched,
            threads=config.threads,
            calls_max=calls_max,
            part_bytes=PART_BYTES,
            breaker=WatchingBreaker(breaker, watched),
            name=f"mooncake-{config.index}",
        )

    def register(self, memory: memoryview) -> None:
        """Tell the store's client of memory, once: RDMA needs it. The memory must live until the tier is closed."""
        self._mooncake.register(memory)


def open(  # noqa: A001 - what `kvtide.tiers.config` asks of a type
    config: TierConfig,
    namespace: Namespace,
    rank: int,  # noqa: ARG001 - it is part of the namespace
    slot_bytes_max: int,  # noqa: ARG001 - any size will do
) -> MooncakeTier:
    """Open the tier for one rank. A store that cannot be reached is no error: it is tried again later."""
    assert isinstance(config, MooncakeConfig)
    load(config.deadline_ms)
    return MooncakeTier(config, namespace)
