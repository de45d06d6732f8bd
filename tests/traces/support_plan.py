"""Plans of small workloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtide.traces.plan import PlanConfig, PlanResult, make_plan
from kvtide.traces.prices import GIB, GIB_HOUR, Prices
from kvtide.traces.rates import PRESETS
from kvtide.traces.record import TraceRequest

MOONCAKE = Path(__file__).parent / "mooncake-conversation-800.jsonl.gz"
"""The first 800 requests of Mooncake's trace of conversations (FAST'25, Apache-2.0)."""

CONFIG = PlanConfig(
    block_tokens=512,
    bytes_per_token=131_072,
    device_bytes=40 * GIB,
    policies=("prefix",),
    cost=PRESETS["h200"],
    prices=Prices(3.5, GIB_HOUR),
)


def plan(requests: Iterable[TraceRequest], **changes: Any) -> PlanResult:
    return make_plan(requests, replace(CONFIG, **changes))
