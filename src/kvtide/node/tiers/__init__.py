"""Tiers below the memory of a node: opened and driven by it, outside of the engines' processes."""

from __future__ import annotations
