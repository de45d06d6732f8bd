"""Eviction policies, one file each."""

from __future__ import annotations

POLICIES: dict[str, type] = {"prefix": object, "lru": object}
