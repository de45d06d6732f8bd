"""kvtide's log lines in vLLM's log. vLLM shows only what is below its own name."""

from __future__ import annotations

import logging
from copy import copy

from vllm.logger import init_logger

logger = init_logger("vllm.kvtide")
_NAME = "kvtide: "


def take_over_lines(rank: int | None) -> None:
    """Let lines of `kvtide.tiers`, `kvtide.copy` and all others go to vLLM's log. `rank`: of this process's worker.

    Whoever has given the logger `kvtide` a handler of their own gets these lines there, as before.
    """
    ours = logging.getLogger("kvtide")
    handler = next((known for known in ours.handlers if isinstance(known, _ToVLLM)), None)
    if handler is None:
        if ours.handlers:
            return
        handler = _ToVLLM()
        ours.addHandler(handler)
        ours.propagate = False  # or whoever listens at the root would have every line twice
        ours.setLevel(logging.DEBUG)  # vLLM's logger decides what is shown
    if rank is not None:
        handler.prefix = f"{_NAME}rank {rank}: "


class _ToVLLM(logging.Handler):
    """Hands records to vLLM's logger, with the rank in front."""

    prefix = _NAME

    def emit(self, record: logging.LogRecord) -> None:
        """Hand over one record, as from the file and line that it came from."""
        if not logger.isEnabledFor(record.levelno):
            return
        told = copy(record)
        told.name = logger.name
        told.msg, told.args = self.prefix + record.getMessage().removeprefix(_NAME), None
        logger.handle(told)
