# ruff: noqa: D102  (what each method is for is said where it does something)
"""Halves of a connector that have nothing to do: of the other role, not bound yet, or without prefix caching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvtide.core import Plan
from kvtide.vllm.load_news import LoadNews
from kvtide.vllm.step_messages import StepMetadata

if TYPE_CHECKING:
    from kvtide.vllm.scheduler_side import SchedulerSide
    from kvtide.vllm.worker_side import WorkerSide

NOTHING = StepMetadata(Plan(step=0), slots=0)


class NullSchedulerSide:
    """Has nothing to offer, plans nothing, and is never busy."""

    group_ids: tuple[int, ...] = ()
    busy = False

    def bind(self, pool: Any, cache_manager: Any = None) -> NullSchedulerSide | SchedulerSide:
        return self

    def match(self, request: Any, device_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def plan(self, step: Any) -> StepMetadata:
        return NOTHING

    def frees_soon(self) -> bool:
        return False

    def take_events(self) -> tuple[()]:
        return ()

    def add(self, request: Any) -> None: ...
    def placed(self, request: Any, blocks: Any, external_tokens: int) -> None: ...
    def finished(self, request: Any, block_ids: Sequence[Sequence[int]]) -> None: ...
    def report(self, output: Any) -> None: ...
    def reset(self) -> None: ...
    def take_stats(self) -> None: ...
    def shutdown(self) -> None: ...


class UnboundSchedulerSide(NullSchedulerSide):
    """Before vLLM's block pool is known; it stays so when the engine fails to start."""

    def __init__(self, bound: Callable[[Any, Any], SchedulerSide]) -> None:
        self._bound = bound

    def bind(self, pool: Any, cache_manager: Any = None) -> SchedulerSide:
        return self._bound(pool, cache_manager)


class NullWorkerSide:
    """Copies nothing, and has nothing to say."""

    def __init__(self) -> None:
        self.loads = LoadNews()

    def register(self, kv_caches: Mapping[str, Any]) -> NullWorkerSide | WorkerSide:
        return self

    def settle(self, timeout_s: float) -> bool:
        return True

    def started(self) -> None: ...
    def begin_step(self, step: StepMetadata) -> None: ...
    def forward_issued(self) -> None: ...
    def poll(self) -> None: ...
    def take_report(self) -> None: ...
    def end_step(self) -> None: ...
    def take_stats(self) -> None: ...
    def shutdown(self) -> None: ...


class UnregisteredWorkerSide(NullWorkerSide):
    """Before vLLM's KV tensors are known."""

    def __init__(self, registered: Callable[[Mapping[str, Any]], WorkerSide]) -> None:
        super().__init__()
        self._registered = registered

    def register(self, kv_caches: Mapping[str, Any]) -> NullWorkerSide | WorkerSide:
        return self._registered(kv_caches) if kv_caches else self
