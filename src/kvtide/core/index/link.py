"""The way to a shared index, as an engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvtide.core.index.calls import Call, Reply
from kvtide.core.messages import Pool


class Link(Protocol):
    """Brings calls there and replies back, in order. It comes and goes: each life is a new owner at the index.

    Used by one thread. A life begins inside `receive`, and ends there or in `leave`, one at a time: none is missed.
    """

    @property
    def life(self) -> int | None:
        """Which life this is; None while there is nobody to talk to. A life that is over does not come back."""

    @property
    def pool(self) -> Pool | None:
        """What ranks have to know to get at the memory of this life; None while there is nobody to talk to."""

    @property
    def slots(self) -> int:
        """Host slots that the index has in this life."""

    def send(self, call: Call) -> None:
        """Let a call go with the next `flush`. What it names may change from now on."""

    def flush(self) -> None:
        """Send what waits. Does not block."""

    def receive(self) -> Sequence[Reply]:
        """Return what has come since the last call, in the life that there is now. Does not block."""

    def wait(self, seconds: float) -> float:
        """Wait until something comes, at most so long; return how much of that is left."""

    def leave(self) -> None:
        """End this life, and begin the next one under a name that nobody else has: the weights have changed."""

    def hang_up(self) -> None:
        """End this life, and try to begin another one: whoever is there does not answer."""

    def drained(self, life: int) -> None:
        """No copy of a life that is over is under way any more."""
