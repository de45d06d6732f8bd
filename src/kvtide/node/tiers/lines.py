"""What tiers log, as lines of the node: a tier that fails, works again, or has found old blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PREFIX = "kvtide: "


class _Said(logging.Handler):
    """Hands records on as lines. It never waits for whoever reads them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Say it. What was raised, if anything, is named in one line."""
        error = record.exc_info[1] if record.exc_info else None
        why = "" if error is None else f" ({type(error).__name__}: {error})"
        self._say(f"{record.getMessage().removeprefix(_PREFIX)}{why}")


@contextmanager
def tiers_say(say: Callable[[str], None]) -> Iterator[None]:
    """Let tiers say what they have to say where the node does."""
    log = logging.getLogger("kvtide.tiers")
    before = log.level, log.propagate, log.handlers
    log.setLevel(logging.INFO)
    log.propagate, log.handlers = False, [_Said(say)]
    try:
        yield
    finally:
        log.setLevel(before[0])
        _, log.propagate, log.handlers = before
