"""A tier in which everything goes wrong that can, from a seed. For tests and simulators, also for yours."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import HIT, Item, KeyResult, TierKey, Verdict
from kvtide.tiers.breaker import Switch
from kvtide.tiers.memory import MemoryBackend
from kvtide.tiers.queued import QueuedTier

HANG_S_MAX = 60.0
"""Even what hangs ends at last, as every backend has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often what goes wrong. Shares are of calls or of keys, from 0 to 1."""

    slow: float = 0.0
    """Calls that take up to `slow_s`."""
    slow_s: float = 0.01
    failing: float = 0.0
    """Keys of puts and gets that fail."""
    down: float = 0.0
    """Calls that find the store unreachable."""
    raising: float = 0.0
    """Calls that raise what no backend should."""
    lying: float = 0.0
    """Lookups of keys that are not there, and said to be."""
    losing: float = 0.0
    """Puts that are said to be done, and are not."""
    corrupting: float = 0.0
    """Puts whose bytes change afterwards. The get notices, and it is a miss."""
    hanging: bool = False
    """Every call waits until `FaultyBackend.release`."""


class FaultyBackend(Backend):
    """Keeps records in memory, as well as `faults` let it. The same seed and calls give the same faults.

    What is drawn depends on the order of calls, so runs repeat with one thread only. `faults` may be replaced while it
    runs.
    """

    def __init__(self, faults: Faults, seed: int = 0) -> None:
        self.faults = faults
        self._kept = MemoryBackend()
        self.sealer = self._kept.sealer
        self._random = random.Random(seed)  # noqa: S311 - faults are no secret
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.hangs = threading.Event()
        """Set when a call hangs for the first time."""

    def release(self) -> None:
        """Let go of what hangs, now and from now on."""
        self._released.set()

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Say which keys are there, or lie."""
        self._begin()
        return [
            HIT if found.verdict is Verdict.MISS and self._happens(self.faults.lying) else found
            for found in self._kept.lookup(keys)
        ]

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Keep bytes, or not, or not as they were."""
        self._begin()
        return [self._put(item) for item in items]

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers, or fail."""
        self._begin()
        return [self._failure() or self._kept.get([item])[0] for item in items]

    def clear(self) -> KeyResult:
        """Forget everything."""
        self._begin()
        return self._kept.clear()

    def close(self) -> None:
        """Give the memory back."""
        self._kept.close()

    def bytes_used(self) -> int:
        """Return what is held."""
        return self._kept.bytes_used()

    def bytes_budget(self) -> int:
        """Return what may be held."""
        return self._kept.bytes_budget()

    def _begin(self) -> None:
        """Do what can happen to any call."""
        if self.faults.hanging:
            self.hangs.set()
            self._released.wait(HANG_S_MAX)
        if self._happens(self.faults.slow):
            time.sleep(self._draw() * self.faults.slow_s)
        if self._happens(self.faults.down):
            raise BackendDown("nobody answers")
        if self._happens(self.faults.raising):
            raise RuntimeError("the backend has a bug")

    def _put(self, item: Item) -> KeyResult:
        failure = self._failure()
        if failure is not None:
            return failure
        if self._happens(self.faults.losing):
            return HIT
        (result,) = self._kept.put([item])
        if item.buffer.nbytes and self._happens(self.faults.corrupting):
            self._kept.damage(item.key, int(self._draw() * item.buffer.nbytes))
        return result

    def _failure(self) -> KeyResult | None:
        return KeyResult(Verdict.FAILED, "it went wrong") if self._happens(self.faults.failing) else None

    def _happens(self, share: float) -> bool:
        return bool(share) and self._draw() < share

    def _draw(self) -> float:
        with self._lock:
            return self._random.random()


class FaultyTier(QueuedTier):
    """A queued tier on a `FaultyBackend`.

    Examples:
        >>> tier = FaultyTier(Faults(down=1.0), seed=7)
        >>> tier.lookup(1, [b"key"]), tier.wait(5.0), tier.poll()[0].results[0].verdict, tier.close()
        (True, True, <Verdict.FAILED: 'failed'>, True)

    """

    def __init__(
        self,
        faults: Faults,
        seed: int = 0,
        *,
        threads: int = 1,
        calls_max: int = 1024,
        bytes_max: int = 1 << 30,
        breaker: Switch | None = None,
    ) -> None:
        self.backend = FaultyBackend(faults, seed)
        super().__init__(
            self.backend, threads=threads, calls_max=calls_max, bytes_max=bytes_max, breaker=breaker, name="faulty"
        )
