"""Whether it is worth trying to pack: what does not pack would be copied in vain, and then once more as it is."""

from __future__ import annotations

import threading

_BLOCKS = 64
"""So many are looked at before it is thought over."""
_TRY_AGAIN = 16
"""Where hardly anything packs, one store in so many is tried all the same: other requests may bring other blocks."""


class Habit:
    """What became of the last blocks. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = self._unfit = 0
        self._has_given_up = False
        self._stores = 0
        """Since it was given up."""

    def seen(self, blocks: int, unfit: int) -> None:
        """Take note of blocks that were tried: so many of them do not pack."""
        with self._lock:
            self._blocks += blocks
            self._unfit += unfit
            if self._blocks >= _BLOCKS:
                self._has_given_up = 2 * self._unfit > self._blocks
                self._blocks = self._unfit = 0

    def is_worth_trying(self) -> bool:
        """Whether to try with the next store. To be asked once for each."""
        with self._lock:
            if not self._has_given_up:
                return True
            self._stores += 1
            return self._stores % _TRY_AGAIN == 0
