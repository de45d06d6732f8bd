"""Which cached block leaves the host first. One file per policy; `POLICIES` names them for the configuration."""

from __future__ import annotations

from kvtide.core.eviction.base import NO_PARENT, EvictionPolicy
from kvtide.core.eviction.lru import LRU
from kvtide.core.eviction.prefix_aware import PrefixAware

POLICIES: dict[str, type[EvictionPolicy]] = {"prefix": PrefixAware, "lru": LRU}

__all__ = ["LRU", "NO_PARENT", "POLICIES", "EvictionPolicy", "PrefixAware"]
