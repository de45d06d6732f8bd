"""From the host to the device: the loads that bring what was matched, and when they are worth it."""

from __future__ import annotations
