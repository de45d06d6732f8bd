"""The interface of everything that keeps blocks below host memory."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtide.latency import Latencies

TierKey = bytes
"""Names one block of one group. Namespace and rank are not part of it: a tier is made for one of each."""


class Verdict(enum.Enum):
    """What became of one key."""

    HIT = "hit"
    """Lookup: it is there. Get: the buffer holds its bytes, verified. Put and clear: done."""
    MISS = "miss"
    """It is not there, or not any more, or what is there did not verify. The buffer of a get is undefined."""
    THROTTLED = "throttled"
    """Not tried: too much is under way, there is no room, or the tier is switched off for a while."""
    FAILED = "failed"
    """Tried, and it did not work: `why` says what happened."""


class KeyResult(NamedTuple):
    """What became of one key, and why if that needs saying."""

    verdict: Verdict
    why: str = ""


HIT = KeyResult(Verdict.HIT)
MISS = KeyResult(Verdict.MISS)


class CallResult(NamedTuple):
    """What became of one call: a result for each of its keys, in the order of the call."""

    ticket: int
    results: tuple[KeyResult, ...]


class Item(NamedTuple):
    """A key and the memory that its bytes are read from (put) or written to (get): contiguous, of any size."""

    key: TierKey
    buffer: memoryview


@dataclass(slots=True)
class TierStats:
    """What a tier did since it was opened, and what it holds."""

    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    """Keys by call ("lookup", "put", "get", "clear") and verdict ("hit", "miss", …)."""
    bytes_put: int = 0
    bytes_got: int = 0
    seconds: dict[str, Latencies] = field(default_factory=dict)
    """For each call, how long calls took."""
    corrupt_records: int = 0
    wrong_secret_records: int = 0
    """Records that verify and were encrypted with another key."""
    breaker: str = "closed"
    """"closed": in use, "open": switched off after failures, "half-open": being tried again."""
    bytes_used: int | None = None
    """None: the tier does not know, or what it holds is not its own."""
    bytes_budget: int | None = None


class Tier(ABC):
    """Keeps blocks by key. Nothing that goes wrong is raised by a call: it is a result.

    Calls return at once; each ticket that was taken is answered by `poll` exactly once. Tickets are the caller's,
    and run in any order and at the same time. Memory handed to `put` and `get` belongs to the tier until the
    ticket is answered, and is not touched after that.

    One thread calls, polls and closes.
    """

    @abstractmethod
    def lookup(self, ticket: int, keys: Sequence[TierKey]) -> bool:
        """Ask which keys are there. A hint: a hit may be gone when it is fetched.

        All calls return False, and will not be answered, if the tier is closed or as much as it can hold is
        under way; nothing was or will be done then.
        """

    @abstractmethod
    def put(self, ticket: int, items: Sequence[Item]) -> bool:
        """Keep bytes under their keys. A key that is there already is a hit, and may be written or left."""

    @abstractmethod
    def get(self, ticket: int, items: Sequence[Item]) -> bool:
        """Bring bytes back. A hit was verified; a key whose bytes have another length than the buffer is a miss."""

    @abstractmethod
    def clear(self, ticket: int) -> bool:
        """Forget everything of this namespace and rank (F9). The answer has one result.

        Waits for puts that are under way, so that none of them brings back what was forgotten.
        """

    @abstractmethod
    def poll(self) -> list[CallResult]:
        """Return the answers since the last call, each exactly once. Does not block."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Block until there is an answer to poll or nothing is under way, at most `timeout_s`.

        Returns False if time ran out.
        """

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> bool:
        """Take no more calls, let what runs come to its end, give back threads, files, connections.

        What had not begun is answered as failed by the next `poll`. Returns whether everything has ended. False
        after `timeout_s`: something still runs, and its memory is not free before it is polled. May be called
        again.
        """

    def register(self, memory: memoryview) -> None:  # noqa: B027 - nothing to do is the usual case
        """Learn which memory all buffers will be in, before the first call. It stays until the tier is closed.

        Most tiers need not know; those that transfer by themselves do.
        """

    def tell(self, answered: Callable[[], None]) -> None:  # noqa: B027 - whoever polls often needs no word
        """Learn whom to tell that there is something to poll: from any thread, maybe more than once, maybe in vain.

        What is called must not call the tier, and must not raise.
        """

    @abstractmethod
    def stats(self) -> TierStats:
        """Return what was done so far and what is held."""
