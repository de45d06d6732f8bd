"""From the host to the device: what a request can resume from, and the loads that bring it."""

from __future__ import annotations
