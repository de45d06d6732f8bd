"""What the two halves of the connector say to each other, in the envelopes that vLLM asks for."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from kvtide.core import Plan, Report


@dataclass(slots=True)
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM has no type information here
    """From the scheduler to every worker, once per step."""

    plan: Plan
    slots: int
    """Host slots of each rank. The scheduler alone computes this; the workers obey (F22)."""
    idle: bool = False
    """There is no forward pass in this step, so copies need not wait for one."""
    frees_deferred: bool = False
    """vLLM gives out no block that a step in flight may use."""
    timed: int = 0
    """Not 0: a number for the workers to say when the step is over."""
    announce: dict[str, int | None] = field(default_factory=dict)
    """Requests whose load is over without a worker's doing, to be announced to vLLM by every rank.

    The value is None if the load succeeded (there was nothing to copy), or a block that it did not fill.
    """
    arrived: tuple[str, ...] = ()
    """Requests whose load the scheduler has heard of since the step before: from this step on they may run."""


class Looked(NamedTuple):
    """What a worker sees when the scheduler, in its process, asks it."""

    reports: tuple[Report, ...] = ()
    loaded: Set[str] = frozenset()
    """Requests whose load is over or certain, of which vLLM has not heard."""


@dataclass(slots=True)
class WorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]  # vLLM has no type information here
    """From the workers to the scheduler: one report of each rank that has something to say."""

    reports: tuple[Report, ...]
    off: bool = False
    """This rank cannot copy any more, ever: its device is lost, or its copy engine is broken."""
    timed: int = 0
    """The number of the step that is over, if that was asked for."""
    look: Callable[[], Looked] | None = None
    """Says what has ended by now. None where the worker has a process of its own."""

    def __reduce__(self) -> tuple[object, ...]:
        """Leave behind what no other process can call."""
        return WorkerMetadata, (self.reports, self.off, self.timed)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Join with what another rank says."""
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(self.reports + other.reports, self.off or other.off, max(self.timed, other.timed))
