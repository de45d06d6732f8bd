"""Below the host: what sinks to the tiers and what is brought up from them."""

from __future__ import annotations
