"""Which cached block leaves the host first. One file per policy; `POLICIES` names them for the configuration."""

from __future__ import annotations

from kvtide.core.eviction.arc import ARC
from kvtide.core.eviction.base import NO_PARENT, EvictionPolicy
from kvtide.core.eviction.forecast import Forecast
from kvtide.core.eviction.lru import LRU
from kvtide.core.eviction.prefix_aware import PrefixAware
from kvtide.core.eviction.s3fifo import S3FIFO

POLICIES: dict[str, type[EvictionPolicy]] = {
    "prefix": PrefixAware,
    "lru": LRU,
    "arc": ARC,
    "s3fifo": S3FIFO,
    "forecast": Forecast,
}

__all__ = ["ARC", "LRU", "NO_PARENT", "POLICIES", "S3FIFO", "EvictionPolicy", "Forecast", "PrefixAware"]
