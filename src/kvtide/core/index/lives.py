"""Lives of an engine at a shared index: which one this is, and what is still held of those before (I12, I13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvtide.core.index.calls import Call, Ready, Reply
from kvtide.core.index.link import Link
from kvtide.core.messages import Pool

ATTACH_S = 1.0
"""So long after the beginning of a life requests wait for the ranks to have its memory."""
STEP_S_MAX = 0.4
"""The most that one step counts for: ranks hear of a life by a plan, and cannot answer while the engine rests."""


class Lives:
    """Talks to the index in the present life, and to nobody about others. A life begins without any memory."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.now: int | None = None
        """The present life, as far as it was noticed."""
        self._held: Counter[int] = Counter()
        """Leases and runs of each life: as long as there are any, copies may be under way."""
        self._slots_ready = 0
        self._age_s = 0.0
        self.unsent = False
        """Something was said that the next flush will send."""

    # ------------------------------------------------------------------ beginning and end

    def receive(self) -> Sequence[Reply]:
        """Return what has come. If `has_changed`, it belongs to a life that is still to `begin`."""
        return self._link.receive()

    @property
    def has_changed(self) -> bool:
        """Whether the present life is over, or another one is there."""
        return self._link.life != self.now

    def begin(self) -> None:
        """Begin the life that there is now, if there is one."""
        self.now = self._link.life
        self._slots_ready, self._age_s = 0, 0.0
        if self.now is not None:
            self.send(Ready(0))

    def end(self, held: int) -> None:
        """End the present life. So much of what it holds is let go of: nobody has taken it."""
        self.unsent = False
        life, self.now = self.now, None
        if life is not None:
            self._held[life] -= held
            self._drain(life)

    def is_here(self, life: int | None) -> bool:
        """Whether something can be said about what was granted in some life. The next one knows nothing of it."""
        return life is not None and life == self.now == self._link.life

    @property
    def pool(self) -> Pool | None:
        """Where the host slots of the present life are."""
        return self._link.pool if self.is_here(self.now) else None

    # ------------------------------------------------------------------ memory

    @property
    def has_memory(self) -> bool:
        """Whether all ranks can use the first slots."""
        return self._slots_ready > 0

    @property
    def is_young(self) -> bool:
        """Whether the ranks may be expected to have the memory in a moment."""
        return self._age_s < ATTACH_S

    def grow(self, slots: int) -> None:
        """All ranks can use so many slots."""
        if self.is_here(self.now):
            self._slots_ready = slots
            self.send(Ready(slots))

    def passed(self, seconds: float) -> None:
        """So much time has passed."""
        self._age_s += min(seconds, STEP_S_MAX)

    # ------------------------------------------------------------------ what is held

    def hold(self) -> int:
        """Take note of a lease or a run; return its life."""
        assert self.now is not None
        self._held[self.now] += 1
        return self.now

    def let_go(self, life: int) -> None:
        """Take note that nothing copies any more from a lease, or to a run."""
        self._held[life] -= 1
        if life != self.now:
            self._drain(life)

    def _drain(self, life: int) -> None:
        """Tell that nothing is held any more of a life that is over."""
        if not self._held[life]:
            del self._held[life]
            self._link.drained(life)

    # ------------------------------------------------------------------ saying

    def send(self, call: Call) -> None:
        """Say something with the next flush."""
        self._link.send(call)
        self.unsent = True

    def say(self, life: int, call: Call) -> None:
        """Say something about what was granted in some life, if that is the present one."""
        if self.is_here(life):
            self.send(call)

    def flush(self) -> None:
        """Send what was said."""
        self._link.flush()
        self.unsent = False

    def wait(self, seconds: float) -> float:
        """Wait until something comes, at most so long; return how much of that is left."""
        return self._link.wait(seconds)

    def leave(self) -> None:
        """Go where nobody else is: the weights have changed. To be followed by `end`."""
        self._link.leave()

    def hang_up(self) -> None:
        """Leave a node that does not answer. To be followed by `end`."""
        self._link.hang_up()
