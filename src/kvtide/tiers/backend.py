"""What a kind of tier has to bring along: calls that block. `QueuedTier` makes a tier of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvtide.tiers.base import Item, KeyResult, TierKey
from kvtide.tiers.record import Sealer


class BackendDown(Exception):
    """The store as a whole cannot be reached or used: the call is failed, and the breaker counts it."""


class Backend(ABC):
    """A store with blocking calls, made for one namespace and one rank.

    Calls come from several threads at a time. Each returns one result per key, in order, or raises `BackendDown`
    when nothing could be done at all. Each ends by itself: whatever waits inside (a socket, a lock) has a deadline.
    Any other exception is a fault of the backend: it fails the call, is logged once, and kills no thread.
    """

    sealer: Sealer
    """Makes its records and verifies them."""
    looks_up_in_memory = False
    """Whether `lookup` neither waits nor does any I/O, so that whoever asks need not wait for a thread."""

    def join(self) -> None:  # noqa: B027 - nothing to do is the usual case
        """Reach the store, before the first call. Raises `BackendDown` if that fails; the first call tries again."""

    def register(self, memory: memoryview) -> None:  # noqa: B027 - nothing to do is the usual case
        """See `Tier.register`."""

    @abstractmethod
    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Say which keys are there."""

    @abstractmethod
    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Keep bytes under their keys."""

    @abstractmethod
    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers with verified bytes."""

    @abstractmethod
    def clear(self) -> KeyResult:
        """Forget everything of this namespace and rank."""

    @abstractmethod
    def close(self) -> None:
        """Give files and connections back. No call comes after this."""

    def corrupt_records(self) -> int:
        """Return how many records did not verify so far."""
        return self.sealer.corrupt_records

    def wrong_secret_records(self) -> int:
        """Return how many records could not be decrypted so far, though they verify."""
        return self.sealer.wrong_secret_records

    def bytes_used(self) -> int | None:
        """Return what is held, as it counts against the budget. None: not known."""
        return None

    def bytes_budget(self) -> int | None:
        """Return what may be held. None: no bound of our own."""
        return None
