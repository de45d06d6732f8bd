"""Keeps the log short: says when something stops working and when it works again, and counts what comes often."""

from __future__ import annotations

import logging
import re
import threading

_POWER_OF_TEN = re.compile("10*")


def is_worth_a_line(count: int) -> bool:
    """Whether to say that something has happened so often: once, 10 times, 100 times and so on.

    >>> [count for count in range(2000) if is_worth_a_line(count)]
    [1, 10, 100, 1000]
    """
    return _POWER_OF_TEN.fullmatch(str(count)) is not None


class LogOnce:
    """The state of one thing that may fail. Calls come from any thread.

    `what` is the beginning of both lines, for example "the store valkey://cache:6379/0".
    """

    def __init__(self, log: logging.Logger, what: str, *, meanwhile: str) -> None:
        self._log = log
        self._what = what
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._is_on = False

    def began(self, why: str) -> None:
        """Note a failure."""
        with self._lock:
            first, self._is_on = not self._is_on, True
        if first:
            self._log.warning("kvtide: %s: %s; %s", self._what, why, self._meanwhile)

    def over(self) -> None:
        """Note a success."""
        if not self._is_on:  # without the lock: this is every call's way, and a late line does no harm
            return
        with self._lock:
            last, self._is_on = self._is_on, False
        if last:
            self._log.warning("kvtide: %s: works again", self._what)
