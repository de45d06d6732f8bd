"""A connector whose loads fail on rank 1, to be found by its module path in every worker process."""

from __future__ import annotations

from typing import Any

from kvtide.errors import CopyError
from kvtide.vllm import memory
from kvtide.vllm.connector import KVTideConnector as Whole


class KVTideConnector(Whole):
    """Works on all ranks but one."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Let loads come after something that never comes."""
        if self._worker is None or self._worker._rank != 1:
            super().start_load_kv(forward_context, **kwargs)
            return
        fence = memory.fence
        memory.fence = lambda stripes: _fail
        try:
            super().start_load_kv(forward_context, **kwargs)
        finally:
            memory.fence = fence


def _fail() -> None:
    raise CopyError("the test says so")
