"""Blocks in Valkey (or Redis), shared by several engines. See `kvtide.tiers.config` for what a type provides."""

from __future__ import annotations

from kvtide.tiers.valkey.admin import clear, inspect, verify
from kvtide.tiers.valkey.kind import open  # noqa: A004 - what `kvtide.tiers.config` asks of a type
from kvtide.tiers.valkey.options import ACCESS, OPTIONS, URL_SCHEMES, ValkeyConfig, parse

__all__ = ["ACCESS", "OPTIONS", "URL_SCHEMES", "ValkeyConfig", "clear", "inspect", "open", "parse", "verify"]
