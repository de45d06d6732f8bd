"""The policy `forecast`: who is least likely to come back soon leaves first. Start reading at `policy.py`."""

from __future__ import annotations

from kvtide.core.eviction.forecast.policy import Forecast

__all__ = ["Forecast"]
