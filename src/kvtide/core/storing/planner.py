"""When to store: the interface that eager and lazy mode share."""

from __future__ import annotations

from typing import Protocol

from kvtide.core.groups import Key
from kvtide.core.requests import Request


class StorePlanner(Protocol):
    """Decides which blocks are stored when; `Stores` does the storing."""

    def advanced(self, request: Request, before_tokens: int) -> None:
        """More tokens of a running request have been computed than `before_tokens`."""

    def preempted(self, request: Request) -> None:
        """The engine takes the blocks of a request away."""

    def finished(self, request: Request) -> None:
        """A request is over; its blocks are still its own during this call."""

    def evicted(self, group: int, key: Key) -> None:
        """The device holds a key no longer."""

    def plan(self, loading_blocks: int) -> None:
        """Start the stores of this step; `loading_blocks` were allocated for loads since the last one."""

    def reset(self) -> None:
        """Forget what was going to be stored."""

    @property
    def waiting(self) -> bool:
        """Whether a later plan will have stores to start even if nothing else happens."""
