"""The interface of everything that moves blocks between device and host memory."""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtide.copy.slot_places import SlotPlaces
from kvtide.core.messages import Copy, Pool
from kvtide.latency import Latencies

Fence = Callable[[], object]
"""What a copy must come after.

Called once, where the copy is issued and right before it. It returns when the compute it stands for has
ended, or when it has arranged that the copy cannot overtake that compute: `torch.cuda.Event.wait`, called
with the copy stream current, is a fence as it is. A fence that raises fails its transfer. A fence must end by
itself.
"""


class Direction(enum.Enum):
    """Which way the bytes of a transfer go."""

    STORE = "store"
    """Device to host."""
    LOAD = "load"
    """Host to device."""


class Finished(NamedTuple):
    """The transfers that ended since the last poll."""

    done: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    """Pairs of transfer id and why it failed."""
    not_kept: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Pairs of a store that is done and host slots of it that there was no place for: they hold nothing."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was moved in one direction since the engine was made. Failed transfers do not count."""

    transfers: int = 0
    bytes: int = 0
    """What went from one memory to the other."""
    seconds: Latencies = field(default_factory=Latencies)
    """Spent copying, without waiting in the queue or for fences. Copies that run at a time add up."""
    saved_bytes: int = 0
    """So many less than the blocks have, because they were packed."""
    unpacked_blocks: int = 0
    """Stores: blocks that do not pack."""

    @property
    def busy_s(self) -> float:
        """Seconds of all copies together."""
        return self.seconds.total_s

    def plus(self, other: Traffic) -> Traffic:
        """Return this and what another engine has moved."""
        return Traffic(
            self.transfers + other.transfers,
            self.bytes + other.bytes,
            self.seconds.together(other.seconds),
            self.saved_bytes + other.saved_bytes,
            self.unpacked_blocks + other.unpacked_blocks,
        )


class CopyEngine(ABC):
    """Moves blocks. Nothing that goes wrong with a transfer is raised: it is reported by `poll`.

    Transfers run in any order and at the same time. If one must come after another, submit it when the other was
    reported; the core makes sure of that by pinning what is in flight.

    One thread submits, polls, waits and closes.
    """

    @abstractmethod
    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Take a transfer and return at once; `poll` will report it exactly once.

        `after` is what the copy must come after. None: the compute that wrote or read these blocks has ended.

        Returns False if the transfer is refused, because as many as fit are in flight (submitted and not yet
        polled) or because the engine is closed. A refused transfer moves nothing and is not reported. A
        transfer that is already in flight is not taken a second time; the answer is True.
        """

    @abstractmethod
    def poll(self) -> Finished:
        """Return the transfers that ended since the last call, each exactly once. Does not block."""

    @abstractmethod
    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until none of the transfers is under way, at most `timeout_s`. Returns False if time ran out.

        Transfers that were polled or never submitted are not under way. What ended is still reported by
        `poll`.
        """

    @abstractmethod
    def close(self, timeout_s: float = 5.0) -> bool:
        """Take no more transfers, let those that run come to their end, give back threads and views.

        Transfers that had not begun are reported as failed by the next `poll`. Returns whether nothing moves any
        more. False after `timeout_s`: a copy still runs and uses its memory; the first `poll` after its end
        reports it. May be called again.
        """

    @abstractmethod
    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction so far."""

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        """Return the loads under way that only the loss of the device can stop, each with a fence for compute.

        Of these, those that are over within so long, as far as that can be told.

        Called where compute is issued, the fence makes all compute issued after it wait for the load. So a request can
        be started while its last bytes are still on their way. Its memory stays taken until `poll` reports the load.

        Empty where a copy can fail until its last byte has moved.
        """
        return {}

    def wait_certain(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until each of the transfers is certain or has ended, at most `timeout_s`."""
        return self.wait(ids, timeout_s)

    def share(self, *, compute: bool) -> None:  # noqa: B027 (nothing to share where there are no copy engines)
        """Tell whether the device computes from now on.

        If so, copies leave gaps for the small ones that go with compute, and are a little slower.
        """

    def started(self) -> None:  # noqa: B027 (most engines have nothing left to do then)
        """Tell that the serving engine has started, and serves from now on. May be called again."""

    def device_memory_goes(self) -> None:  # noqa: B027 (most engines keep nothing there)
        """Tell that device memory, the engine's own too, may lose its content before the next transfer.

        No transfer is under way. Addresses stay the same, and are valid again when the next transfer comes.
        """

    def use(self, pool: Pool | None) -> None:  # noqa: B027 (most engines have memory of their own)
        """Tell where host slots are from now on, in every step: for engines whose host memory is kept by a node."""

    @property
    def life(self) -> int:
        """Which memory `slots_ready` is about, as `Copy.life` says: 0 where there is only one."""
        return 0

    @property
    def lost(self) -> str | None:
        """Why nothing can be copied any more, ever, or None."""
        return None

    @property
    def places(self) -> SlotPlaces | None:
        """Where the blocks of slots are while blocks are packed. None: they are not, and each is in its slot."""
        return None

    def slots_ready(self) -> int | None:
        """Return how many host slots, from slot 0 on, can be used by now. None: all of them, from the start."""
        return None
