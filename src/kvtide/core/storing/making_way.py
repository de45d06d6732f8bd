"""When stores make way: the blocks that they pin may be all that a request lacks."""

from __future__ import annotations

STEPS_IN_VAIN_MAX, WAY_STEPS = 4, 256
"""After so many steps in which a request lost its blocks in vain, stores make way for so many."""


class MakingWay:
    """In a pool that one request fills, all its lives could end while it waits for pins, and at the same place (I8).

    So after some steps like that nothing is pinned for a while, and until somebody got further. Where a server has many
    requests somebody always does.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Nothing may be pinned."""
        self._in_vain = False
        """In this step a request lost its blocks while stores had pins, and was no further than before."""
        self._steps_in_vain = 0
        """So many, without anybody getting further in between."""
        self._steps_left = 0
        """So many it goes on, whoever gets further."""

    def preempted(self, *, in_vain: bool, pins: int) -> None:
        """Hear that a request has lost its blocks; `in_vain`: once more, and no further than before."""
        if in_vain and pins:
            self._in_vain = True

    def got_further(self) -> None:
        """Hear that a request was computed further than ever before."""
        self._steps_in_vain = 0
        self.is_on &= self._steps_left > 0

    def finished(self) -> None:
        """Hear that a request is over."""
        self._steps_in_vain, self.is_on = 0, False

    def step_ends(self) -> None:
        """Count a step, however many requests have lost their blocks in it."""
        self._steps_left -= 1
        self._steps_in_vain += self._in_vain
        self._in_vain = False
        if self._steps_in_vain >= STEPS_IN_VAIN_MAX and not self.is_on:
            self.is_on, self._steps_left = True, WAY_STEPS
