"""Transfers that some rank does not report: the core has no clock, so it is told how time goes by."""

from __future__ import annotations

import time

from kvtide.core import OffloadManager
from kvtide.vllm.log import logger


class OverdueWatch:
    """Lets the core notice such transfers, and says so in the log, once as long as that lasts."""

    def __init__(self, manager: OffloadManager) -> None:
        self._manager = manager
        self._told_s = time.monotonic()
        self._said = False

    def let_time_pass(self) -> bool:
        """Return whether any transfer is overdue."""
        before_s, self._told_s = self._told_s, time.monotonic()
        self._manager.passed(self._told_s - before_s)
        overdue = self._manager.overdue
        if overdue is not None and not self._said:
            logger.error("kvtide: %s; nothing is loaded or stored until all ranks have answered", overdue)
        elif overdue is None and self._said:
            logger.warning("kvtide: all ranks have answered: blocks are loaded and stored again")
        self._said = overdue is not None
        return self._said
