"""What is under way in a queued tier, and what runs next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvtide.tiers.base import CallResult, Item, KeyResult, TierKey, Verdict
from kvtide.tiers.batches import batches

CallName = Literal["lookup", "get", "put", "clear"]
Work = Item | TierKey
_NOT_YET = KeyResult(Verdict.FAILED, "it has not ended")


def size_of(work: Work) -> int:
    """Return the bytes of memory that one key's work holds."""
    return work.buffer.nbytes if isinstance(work, Item) else 0


@dataclass(slots=True, eq=False)
class Call:
    """One call, from its ticket to its answer."""

    name: CallName
    ticket: int
    work: Sequence[Work]
    begin_s: float
    size: int
    """Bytes of memory that it holds."""
    results: list[KeyResult] = field(default_factory=list)
    parts_left: int = 0

    def __post_init__(self) -> None:
        """Make room for the results."""
        self.results = [_NOT_YET] * (1 if self.name == "clear" else len(self.work))

    @property
    def writes(self) -> bool:
        """Whether it changes what is kept."""
        return self.name in ("put", "clear")

    def result(self) -> CallResult:
        """Return what became of it, when all parts have ended."""
        assert not self.parts_left
        return CallResult(self.ticket, tuple(self.results))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some of a call's keys: what one thread does at a time."""

    call: Call
    first: int
    last: int


def parts_of(call: Call, part_bytes: int) -> list[Part]:
    """Cut a call into parts of at most `part_bytes`, so that several threads share a large one."""
    if call.size <= part_bytes:
        return [Part(call, 0, len(call.results))]
    parts: list[Part] = []
    first = 0
    for some in batches(call.work, bytes_max=part_bytes, size_of=size_of):
        parts.append(Part(call, first, first + len(some)))
        first += len(some)
    return parts


class CallQueue:
    """What waits. Lookups go first and gets second, because requests wait for them; nobody waits for a put.

    Puts leave at least one thread to the others, if there is more than one. A clear is a barrier between the puts
    before it and those after it. Not locked: the tier does that.
    """

    def __init__(self, threads: int) -> None:
        self._writers_max = max(1, threads - 1)
        self._lookups: deque[Part] = deque()
        self._gets: deque[Part] = deque()
        self._writes: deque[Part] = deque()
        self._writing = 0
        self._clearing = False

    def add(self, part: Part) -> None:
        """Let a part wait for a thread. A clear comes before all that was not begun."""
        if part.call.name == "clear":
            self._writes.appendleft(part)
            return
        lane = {"lookup": self._lookups, "get": self._gets}.get(part.call.name, self._writes)
        lane.append(part)

    def next(self) -> Part | None:
        """Take the part that runs next. None: nothing can run now."""
        for lane in (self._lookups, self._gets):
            if lane:
                return lane.popleft()
        if not self._may_write():
            return None
        part = self._writes.popleft()
        self._writing += 1
        self._clearing = part.call.name == "clear"
        return part

    def ready(self) -> bool:
        """Say whether there is a part that can run now."""
        return bool(self._lookups or self._gets or self._may_write())

    def _may_write(self) -> bool:
        if not self._writes or self._clearing or self._writing >= self._writers_max:
            return False
        return self._writes[0].call.name != "clear" or not self._writing

    def ended(self, part: Part) -> None:
        """Note that a part that was taken does not run any more."""
        if part.call.writes:
            self._writing -= 1
            self._clearing = False

    def take_puts(self) -> list[Part]:
        """Remove and return the puts that have not begun: a clear comes, and would undo them."""
        puts = [part for part in self._writes if part.call.name == "put"]
        self._writes = deque(part for part in self._writes if part.call.name != "put")
        return puts

    def take_all(self) -> list[Part]:
        """Remove and return everything that has not begun."""
        waiting = [*self._lookups, *self._gets, *self._writes]
        for lane in (self._lookups, self._gets, self._writes):
            lane.clear()
        return waiting
