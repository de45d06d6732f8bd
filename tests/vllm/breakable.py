"""A connector that goes wrong in the way that files in a folder say, found by its module path in every process.

fail       copies fail
hang       copies do not end
lost       the device is gone, for good
slow       the disk takes longer than its deadline
unlocked   records are written without encryption, as by a server that has no key
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvtide.copy import Direction, Fence
from kvtide.core import Copy, ledger
from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.errors import CopyError
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.record import Sealer
from kvtide.vllm import kv_tensors
from kvtide.vllm.connector import KVTideConnector as Whole

FOLDER = "KVTIDE_TEST_FAULTS"
"""The environment variable that names the folder."""
DEADLINE_MS = 1000
OVERDUE_S = 3.0
HANGS_S_MAX = 60.0

make_copy_engine = kv_tensors.make_copy_engine
get, seal = DiskBackend.get, Sealer.seal


def goes_wrong(name: str) -> bool:
    """Whether a fault is being made."""
    return (Path(os.environ[FOLDER]) / name).exists()


class KVTideConnector(Whole):
    """Works as long as the folder is empty."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Wait less for ranks that are silent, and ask tiers although so small a model computes faster."""
        ledger.OVERDUE_S = OVERDUE_S
        patch.object(FetchBreakEven, "pays", lambda *_: True).start()
        patch.object(kv_tensors, "make_copy_engine", _make_breakable).start()
        patch.object(DiskBackend, "get", _slow_get).start()
        patch.object(Sealer, "seal", _unlocked_seal).start()
        super().__init__(vllm_config, role, kv_cache_config)


def _make_breakable(*args: Any) -> Any:
    engine, arena = make_copy_engine(*args)
    whole: type[Any] = type(engine)

    class Breakable(whole):  # type: ignore[misc]  # whichever it is
        def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
            fault = next((fault for name, fault in FAULTS.items() if goes_wrong(name)), after)
            return bool(super().submit(direction, copy, fault))

        @property
        def lost(self) -> str | None:
            return "the test says so" if goes_wrong("lost") else None

    engine.__class__ = Breakable
    return engine, arena


def _fail() -> None:
    raise CopyError("the test says so")


def _hang() -> None:
    end_s = time.monotonic() + HANGS_S_MAX
    while goes_wrong("hang") and time.monotonic() < end_s:
        time.sleep(0.05)


FAULTS = {"fail": _fail, "hang": _hang}


def _slow_get(backend: DiskBackend, items: Any) -> Any:
    if goes_wrong("slow"):
        time.sleep(2 * DEADLINE_MS / 1000)
    return get(backend, items)


def _unlocked_seal(sealer: Sealer, *args: Any, **named: Any) -> Any:
    return seal(Sealer(sealer.namespace_digest) if goes_wrong("unlocked") else sealer, *args, **named)
