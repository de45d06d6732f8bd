"""The one place where the engine is with or without offloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kvtide.copy import CopyEngine, DeviceCache, HostArena, ThreadedCopyEngine
from kvtide.copy.packing import NAMESPACE_PART
from kvtide.core.config import OPTIONS, OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import Key
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.engine.at_node import AtNode, read_node
from kvtide.engine.config import EngineConfig
from kvtide.engine.keys import tier_namespace
from kvtide.engine.kv_cache import RankCache
from kvtide.engine.packing import codec, packing_copy_engine, take_packing, with_packed_slots
from kvtide.errors import ConfigError
from kvtide.node.option import STAND_IN_BLOCKS
from kvtide.options import check_names
from kvtide.tiers import TierConfig, parse_tiers
from kvtide.tiers.stack import below_of, open_stack
from kvtide.worker import Worker

MORE_OPTIONS = ("tiers", "node", "packing")
"""What people can write besides the options of the core."""
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


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, checked."""

    offload: OffloadConfig
    tiers: tuple[TierConfig, ...] = ()
    node: Path | None = None
    """The socket of the node that keeps host blocks; None: the engine does."""
    packed: bool = False


def read_options(config: EngineConfig, options: Mapping[str, object]) -> Options:
    """Check the options, those of the tiers among them, before anything is allocated."""
    check_names(options, (*OPTIONS, *MORE_OPTIONS))
    node, rest = read_node(options)
    tiers = parse_tiers(rest.pop("tiers", ()))
    packed = take_packing(config, rest, at_node=node is not None)
    geometry = with_packed_slots(config.geometry()) if packed else config.geometry()
    if node is not None:
        rest["host"] = STAND_IN_BLOCKS * geometry.device_blocks * geometry.slot_bytes
    return Options(OffloadConfig.build(geometry, rest, below_of(tiers)), tiers, node, packed)


@dataclass(slots=True)
class Offloading:
    """The manager and the ranks' workers; or, without offloading, a manager that does nothing and no worker."""

    manager: Manager = field(default_factory=NullManager)
    workers: list[Worker] = field(default_factory=list)
    arenas: list[HostArena] = field(default_factory=list)
    node: AtNode | None = None

    @classmethod
    def open(
        cls,
        config: EngineConfig,
        options: Mapping[str, object] | None,
        pool: DevicePool,
        caches: Sequence[RankCache],
        copy_engine: CopyEngineFactory,
    ) -> Offloading:
        """Allocate host memory, or find who has it, and start the workers."""
        opened = cls()
        if options is None:
            return opened
        read = read_options(config, options)
        try:
            if read.node is None:
                opened._open_own(config, read, pool, caches, copy_engine)
            else:
                opened._open_at_node(AtNode(read.node, config), read, pool, caches, copy_engine)
        except BaseException:
            opened.close()
            raise
        return opened

    def _open_own(
        self,
        config: EngineConfig,
        read: Options,
        pool: DevicePool,
        caches: Sequence[RankCache],
        copy_engine: CopyEngineFactory,
    ) -> None:
        if read.packed and copy_engine is not threaded_copy_engine:
            raise ConfigError("packing", "on", "the engine's own copy engine, or off")
        offload, tiers = read.offload, read.tiers
        namespace = tier_namespace(config)
        packer = codec() if read.packed else None
        if packer is not None:
            namespace = namespace.with_setting(NAMESPACE_PART)
        for rank, cache in enumerate(caches):
            device = cache.device_cache()
            if packer is not None:
                engine, arenas = packing_copy_engine(device, offload.slots, packer)
            else:
                arenas = [HostArena(offload.slots, offload.geometry.block_bytes)]
                engine = copy_engine(rank, device, arenas[0])
            self.arenas += arenas
            try:
                stack = open_stack(tiers, namespace, rank, arenas[0].memory, places=engine.places) if tiers else None
            except BaseException:
                engine.close()
                raise
            self.workers.append(Worker(rank, engine, tiers=stack))
        self.manager = OffloadManager(offload, pool)

    def _open_at_node(
        self,
        node: AtNode,
        read: Options,
        pool: DevicePool,
        caches: Sequence[RankCache],
        copy_engine: CopyEngineFactory,
    ) -> None:
        self.node = node
        for rank, cache in enumerate(caches):
            make = partial(copy_engine, rank, cache.device_cache())
            self.workers.append(Worker(rank, node.copy_engine(rank, make)))
        self.manager = OffloadManager(read.offload, pool, index=node.index(read.offload.slots))

    def collect(self) -> Outcome:
        """Hand the workers' reports to the manager."""
        return self.manager.report(*(worker.poll() for worker in self.workers))

    def start(self, plan: Plan) -> None:
        """Let the workers begin a plan. Compute has ended when this is called, so there is nothing to wait for."""
        for worker in self.workers:
            worker.use(plan.pool)
            worker.start(plan)

    def rest(self) -> None:
        """Let a step be over that has computed nothing, and waited for nothing."""
        if self.node is not None:
            self.node.rest()

    def close(self) -> None:
        """Stop the workers and give the host memory back."""
        for worker in self.workers:
            worker.close()
        if self.node is not None:
            self.node.close()
        for arena in self.arenas:
            arena.close()
