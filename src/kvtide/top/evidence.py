"""How much it takes to say something."""

from __future__ import annotations

from kvtide.top.figures import Figures
from kvtide.top.state import State
from kvtide.units import how_many

REQUESTS_MIN = 20
TOKENS_MIN = 2_000
"""With fewer requests, or prompt tokens, chance says more than traffic."""
FULL = 0.95
"""From here on a pool or a tier counts as full."""
NOTABLE = 0.05
"""The least share of prompt tokens, or of blocks, that advice is given for."""
TIER_KEYS_MIN = 500
"""With fewer lookups nothing is said about a tier."""
UNREAD = 20
"""Blocks stored for each one loaded, from which on most of what is stored is of no use as it is."""


def seen_text(shown: Figures, now: State) -> str:
    """Say how much was seen. A node knows what was looked up, and not of which requests."""
    if now.node is not None:
        return f"{how_many(shown.requests, 'look-up')} of {how_many(shown.tokens.all, 'token')}"
    return f"{how_many(shown.requests, 'request')} with {how_many(shown.tokens.all, 'prompt token')}"
