"""Blocks in Valkey (or Redis), shared by several engines."""

from __future__ import annotations

from kvtide.tiers.valkey.admin import clear, inspect, verify
from kvtide.tiers.valkey.opening import open_tier
from kvtide.tiers.valkey.options import ACCESS, CONFIG, URL_SCHEMES

__all__ = ["ACCESS", "CONFIG", "URL_SCHEMES", "clear", "inspect", "open_tier", "verify"]
