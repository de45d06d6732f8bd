"""Blocks on a local disk: a fixed budget of segment files that survive restarts, and are verified on every read."""

from __future__ import annotations

from kvtide.tiers.disk.admin import clear, inspect, verify
from kvtide.tiers.disk.opening import open_tier
from kvtide.tiers.disk.options import ACCESS, CONFIG, URL_SCHEMES

__all__ = ["ACCESS", "CONFIG", "URL_SCHEMES", "clear", "inspect", "open_tier", "verify"]
