"""A connector whose loads fail on rank 1 while a file exists, found by its module path in every worker process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvtide.copy import CopyEngine, Direction, Fence
from kvtide.core import Copy
from kvtide.errors import CopyError
from kvtide.vllm import kv_tensors
from kvtide.vllm.connector import KVTideConnector as Whole

FILE = "KVTIDE_TEST_LOADS_FAIL_WHILE"
"""The environment variable that names the file."""

make_copy_engine = kv_tensors.make_copy_engine


class KVTideConnector(Whole):
    """Works on all ranks but one."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Let loads of that rank come after something that never comes."""
        if self.role == KVConnectorRole.WORKER and self._vllm_config.parallel_config.rank == 1:
            kv_tensors.make_copy_engine = _make_half_broken  # type: ignore[assignment]  # same arguments
        super().register_kv_caches(kv_caches)


def _make_half_broken(*args: Any) -> Any:
    engine, arena = make_copy_engine(*args)
    engine.submit = _refuse_loads(engine)  # type: ignore[method-assign]
    return engine, arena


def _refuse_loads(engine: CopyEngine) -> Any:
    submit = engine.submit

    def submit_or_fail(direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        fails = direction is Direction.LOAD and Path(os.environ[FILE]).exists()
        return submit(direction, copy, _fail if fails else after)

    return submit_or_fail


def _fail() -> None:
    raise CopyError("the test says so")
