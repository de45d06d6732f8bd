"""Plans of small workloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtide.traces.cost import CostModel
from kvtide.traces.gpus import gpu_named
from kvtide.traces.model import DEFAULT_MODEL
from kvtide.traces.plan import PlanConfig, PlanResult, make_plan
from kvtide.traces.prices import GIB, GIB_HOUR, Prices
from kvtide.traces.rates import derive_rates
from kvtide.traces.record import TraceRequest

MOONCAKE = Path(__file__).parent / "mooncake-conversation-800.jsonl.gz"
"""The first 800 requests of Mooncake's trace of conversations (FAST'25, Apache-2.0)."""


def preset(gpu: str) -> CostModel:
    """What a GPU does with the usual model."""
    return derive_rates(gpu_named(gpu), DEFAULT_MODEL).cost()


CONFIG = PlanConfig(
    block_tokens=512,
    bytes_per_token=131_072,
    device_bytes=40 * GIB,
    policies=("prefix",),
    cost=preset("h200"),
    prices=Prices(3.5, GIB_HOUR),
)


def plan(requests: Iterable[TraceRequest], **changes: Any) -> PlanResult:
    return make_plan(requests, replace(CONFIG, **changes))
