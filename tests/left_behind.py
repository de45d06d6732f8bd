"""What a test has left behind in its process. Something of an earlier test may go meanwhile, which is no fault."""

from __future__ import annotations

import os
import threading


class Before:
    """The descriptors and threads of this process, when it was made."""

    def __init__(self) -> None:
        self._descriptors = open_descriptors()
        self._threads = set(threading.enumerate())

    @property
    def new_descriptors(self) -> list[str]:
        """Return those that were not there before."""
        return sorted(open_descriptors() - self._descriptors)

    @property
    def new_threads(self) -> list[str]:
        """Return the names of those that were not there before."""
        return sorted(thread.name for thread in threading.enumerate() if thread not in self._threads)

    def check(self) -> None:
        """Check that there is nothing new."""
        assert self.new_descriptors == []
        assert self.new_threads == []


def open_descriptors() -> set[str]:
    """Return the numbers of all open descriptors."""
    return set(os.listdir("/proc/self/fd"))
