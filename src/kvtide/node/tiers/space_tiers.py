"""What is below the memory of one namespace: a stack of tiers for each part, driven by the node's loop.

Nothing here waits. Tiers have threads of their own, and tell when there is something to hear; opening them takes its
time, in a thread, and what they are to do meanwhile is held back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from kvtide.core.index.shared import SharedIndex
from kvtide.core.messages import Answer, Errand, Lookup, Report
from kvtide.tiers.base import TierStats
from kvtide.tiers.stack import TierStack


class SpaceTiers:
    """Used by the loop's thread alone."""

    def __init__(self, index: SharedIndex, parts: int, deadline_s: float) -> None:
        """`deadline_s`: so long a request waits for tiers that are not open yet."""
        self._index = index
        self._parts = parts
        self._deadline_s = deadline_s
        self._stacks: Sequence[TierStack] | None = None
        """None: they are being opened. Empty: they could not be."""
        self.coming: Sequence[TierStack] = ()
        """Those that were opened, and of which the loop may not have heard yet."""
        self.failure = ""
        self._held_back: deque[tuple[Errand, float]] = deque()
        """What waits for the stacks, and since when."""
        self._driven_s: float | None = None
        self.at_rest = True
        """Nothing is under way, and nothing was left to be done when that was looked at last."""

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._held_back) or any(stack.busy for stack in self._stacks or ())

    @property
    def time_counts(self) -> bool:
        """Whether somebody waits, for tiers or for an engine: then `drive` has to hear how time passes."""
        return self.busy or self._index.waits

    @property
    def sinking_blocks(self) -> int:
        """Blocks that tiers should have, and do not have yet."""
        return self._index.sinking_blocks

    @property
    def stats(self) -> list[dict[str, TierStats]]:
        """What the tiers of each part have done and hold, by name; empty while they are not open."""
        return [stack.stats() for stack in self._stacks or ()]

    def drain(self) -> None:
        """Nothing is stored any more: let everything sink that the tiers should have."""
        self._index.drain()

    def opened(self, stacks: Sequence[TierStack]) -> None:
        """All parts have their tiers now, or none (`failure` says why)."""
        self._stacks = stacks
        while self._held_back:
            self._start(self._held_back.popleft()[0])

    def drive(self, now_s: float, *, sinks: bool = True) -> bool:
        """Begin what is to be done and take what was answered. Returns whether there may be more at once.

        Without `sinks`, these wait: it takes long to begin a thousand of them.
        """
        if self._driven_s is not None:
            self._index.passed(now_s - self._driven_s)
        self._driven_s = now_s if self.time_counts else None
        self._give_up(now_s)
        errands = self._index.plan(sinks=sinks)
        for errand in errands:
            if self._stacks is None:
                self._held_back.append((errand, now_s))
            else:
                self._start(errand)
        heard = self._listen() or bool(errands and self.failure)  # then all is answered already
        self._driven_s = now_s if self.time_counts else None
        self.at_rest = sinks and not heard and not self.busy
        return heard

    def close(self, timeout_s: float) -> bool:
        """Close all tiers; blocks. Returns whether nothing touches the memory any more."""
        end_s = time.monotonic() + timeout_s
        closed = [stack.close(max(0.0, end_s - time.monotonic())) for stack in self._stacks or self.coming]
        return all(closed)

    def _start(self, errand: Errand) -> None:
        assert self._stacks is not None
        for stack in self._stacks:
            stack.start(errand)
        if not self._stacks:
            self._answer_with_nothing(errand)

    def _listen(self) -> bool:
        heard = False
        for part, stack in enumerate(self._stacks or ()):
            answers, late = stack.poll()
            if answers or late:
                heard = True
                self._index.report(Report(part, answers=answers, late=late))
        return heard

    def _give_up(self, now_s: float) -> None:
        """Let nobody wait longer for tiers that are not open than for tiers that do not answer (F18)."""
        kept: deque[tuple[Errand, float]] = deque()
        for errand, since_s in self._held_back:
            if isinstance(errand, Lookup) and now_s - since_s >= self._deadline_s:
                self._index.report(Report(0, late=(errand.id,)))
                self._answer_with_nothing(errand)
            else:
                kept.append((errand, since_s))
        self._held_back = kept

    def _answer_with_nothing(self, errand: Errand) -> None:
        for part in range(self._parts):
            self._index.report(Report(part, answers=(Answer(errand.id),)))
