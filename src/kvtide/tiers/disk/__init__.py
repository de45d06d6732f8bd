"""Blocks on a local disk: a fixed budget of segment files that survive restarts, and are verified on every read."""

from __future__ import annotations
