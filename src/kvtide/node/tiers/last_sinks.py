"""The end of a node: what the tiers should have sinks, for as long as there is time."""

from __future__ import annotations

from collections.abc import Callable

from kvtide.node.systemd import notify
from kvtide.node.tiers.node_tiers import NodeTiers
from kvtide.units import how_many

SINK_S = 30.0
"""For all of it. systemd lets a service have 90 s to stop."""
SAY_EVERY_S = 5.0


class LastSinks:
    """Begins when it is asked for the first time whether it is over: no engine stores anything any more then."""

    def __init__(self, tiers: NodeTiers, say: Callable[[str], None], sink_s: float = SINK_S) -> None:
        self._tiers = tiers
        self._say = say
        self._sink_s = sink_s
        self._end_s: float | None = None
        self._say_s = 0.0

    def are_over(self, now_s: float) -> bool:
        """Whether the node may end. Says how many blocks are left."""
        if self._end_s is None:
            self._end_s = now_s + self._sink_s
            self._say_s = now_s
            self._tiers.drain()
        left = self._tiers.sinking_blocks
        if self._tiers.at_rest:
            return True
        if now_s >= self._end_s:
            self._say(f"{how_many(left, 'block')} not sunk to the tiers within {self._sink_s:g} s, and lost")
            return True
        if now_s >= self._say_s:
            self._say_s = now_s + SAY_EVERY_S
            for_s = self._end_s - now_s
            sinking = f"{how_many(left, 'block')} left to sink to the tiers"
            self._say(f"{sinking}, for at most {for_s:.0f} s; stop again to end at once")
            notify(f"STATUS={sinking}")
        return False
