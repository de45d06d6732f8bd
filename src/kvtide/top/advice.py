"""One piece of advice."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, why, and the numbers that say so."""

    kind: str
    """"repair", "memory", "tier", "policy", "nothing" or "unknown"."""
    do: str
    because: str
    numbers: dict[str, float] = field(default_factory=dict)
