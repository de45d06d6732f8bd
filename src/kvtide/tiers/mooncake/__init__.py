"""Blocks in a Mooncake store, shared by several engines."""

from __future__ import annotations

from kvtide.tiers.mooncake.admin import clear, inspect, verify
from kvtide.tiers.mooncake.opening import open_tier
from kvtide.tiers.mooncake.options import ACCESS, CONFIG, URL_SCHEMES

__all__ = ["ACCESS", "CONFIG", "URL_SCHEMES", "clear", "inspect", "open_tier", "verify"]
