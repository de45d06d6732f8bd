"""Blocks in a Mooncake store, shared by several engines. See `kvtide.tiers.config` for what a type provides."""

from __future__ import annotations

from kvtide.tiers.mooncake.admin import clear, inspect, verify
from kvtide.tiers.mooncake.kind import MooncakeTier, open  # noqa: A004 - what `kvtide.tiers.config` asks of a type
from kvtide.tiers.mooncake.options import OPTIONS, URL_SCHEMES, MooncakeConfig, parse

__all__ = [
    "OPTIONS",
    "URL_SCHEMES",
    "MooncakeConfig",
    "MooncakeTier",
    "clear",
    "inspect",
    "open",
    "parse",
    "verify",
]
