"""The one place where the engine is with or without offloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvtide.copy import CopyEngine, DeviceCache, HostArena, ThreadedCopyEngine
from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import Key
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.engine.config import EngineConfig
from kvtide.engine.keys import tier_namespace
from kvtide.engine.kv_cache import RankCache
from kvtide.tiers import TierConfig, parse_tiers
from kvtide.tiers.stack import below_of, open_stack
from kvtide.worker import Worker

CopyEngineFactory = Callable[[int, DeviceCache, HostArena], CopyEngine]
"""Makes the copy engine of a rank, from the rank, its device blocks and its host slots."""


def threaded_copy_engine(_rank: int, device: DeviceCache, arena: HostArena) -> CopyEngine:
    """Make a copy engine with a thread of its own: the default."""
    return ThreadedCopyEngine(device, arena)


class NullManager:
    """Offloads nothing: finds nothing, plans nothing, is never busy."""

    busy = False

    def add_request(self, request_id: str, keys: Sequence[Sequence[Key]], blocks: Sequence[Sequence[int]]) -> None:
        """Do nothing."""

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> Match:
        """Find nothing."""
        return Match(request_id, device_tokens, 0)

    def reserve(self, match: Match) -> None:
        """Do nothing."""

    def give_up(self, request_id: str) -> None:
        """Do nothing."""

    def admit(self, request_id: str, accepted_tokens: int) -> bool:
        """Load nothing."""
        return False

    def advance(self, request_id: str, computed_tokens: int) -> None:
        """Do nothing."""

    def preempt(self, request_id: str) -> None:
        """Do nothing."""

    def finish(self, request_id: str) -> None:
        """Do nothing."""

    def evicted(self, group: int, key: Key) -> None:
        """Do nothing."""

    def computed(self, tokens: int, seconds: float) -> None:
        """Do nothing."""

    def loaded(self, tokens: int, seconds: float) -> None:
        """Do nothing."""

    def passed(self, seconds: float) -> None:
        """Do nothing."""

    def plan(self, *, idle: bool = False) -> Plan:
        """Ask for nothing."""
        return Plan(step=0)

    def report(self, *reports: Report) -> Outcome:
        """Tell nothing."""
        return Outcome()

    def reset(self) -> None:
        """Do nothing."""


Manager = OffloadManager | NullManager


def read_options(config: EngineConfig, options: Mapping[str, object]) -> tuple[OffloadConfig, tuple[TierConfig, ...]]:
    """Check the options, those of the tiers among them, before anything is allocated."""
    rest = dict(options)
    tiers = parse_tiers(rest.pop("tiers", ()))
    return OffloadConfig.build(config.geometry(), rest, below_of(tiers)), tiers


@dataclass(frozen=True, slots=True)
class Offloading:
    """The manager and the ranks' workers; or, without offloading, a manager that does nothing and no worker."""

    manager: Manager
    workers: tuple[Worker, ...] = ()
    arenas: tuple[HostArena, ...] = ()

    @classmethod
    def open(
        cls,
        config: EngineConfig,
        options: Mapping[str, object] | None,
        pool: DevicePool,
        caches: Sequence[RankCache],
        copy_engine: CopyEngineFactory,
    ) -> Offloading:
        """Allocate host memory and start the workers."""
        if options is None:
            return cls(NullManager())
        offload, tiers = read_options(config, options)
        arenas = tuple(HostArena(offload.slots, offload.geometry.block_bytes) for _ in caches)
        workers: list[Worker] = []
        try:
            for rank, (cache, arena) in enumerate(zip(caches, arenas, strict=True)):
                stack = open_stack(tiers, tier_namespace(config), rank, arena.memory) if tiers else None
                workers.append(Worker(rank, copy_engine(rank, cache.device_cache(), arena), tiers=stack))
        except BaseException:
            for worker in workers:
                worker.close()
            raise
        return cls(OffloadManager(offload, pool), tuple(workers), arenas)

    def collect(self) -> Outcome:
        """Hand the workers' reports to the manager."""
        return self.manager.report(*(worker.poll() for worker in self.workers))

    def start(self, plan: Plan) -> None:
        """Let the workers begin a plan. Compute has ended when this is called, so there is nothing to wait for."""
        for worker in self.workers:
            worker.start(plan)

    def close(self) -> None:
        """Stop the workers and give the host memory back."""
        for worker in self.workers:
            worker.close()
        for arena in self.arenas:
            arena.close()
