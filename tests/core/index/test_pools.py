"""Plans say where host slots are, and what ranks say of them counts for the life in which they say it."""

from __future__ import annotations

from kvtide.core import FullAttention, Geometry, OffloadConfig, OffloadManager, Pool, Report
from kvtide.core.index.calls import Ready
from kvtide.core.index.remote import RemoteIndex
from kvtide.engine.block_pool import BlockPool
from tests.memory_node import MemoryLink, MemoryNode

FULL = (FullAttention(4),)


class Engine:
    """A manager of two ranks whose host slots are at a node."""

    def __init__(self) -> None:
        geometry = Geometry(groups=FULL, block_bytes=1, device_blocks=64, ranks=2)
        config = OffloadConfig.build(geometry, {"host_per_rank": 16})
        self.link = MemoryLink(MemoryNode(config))
        self.manager = OffloadManager(config, BlockPool(64), index=RemoteIndex(self.link, FULL))

    def ready(self, rank: int, slots: int, life: int) -> None:
        self.manager.report(Report(rank, slots_ready=slots, life=life))

    def told(self) -> list[tuple[int, int]]:
        """What the node was told since the last time: in which life, and how many slots are ready."""
        self.manager.plan()
        sent, self.link.sent[:] = list(self.link.sent), []
        return [(life, call.slots) for life, call in sent if isinstance(call, Ready)]


def test_every_plan_of_a_life_names_its_pool_and_without_a_node_there_is_none() -> None:
    engine = Engine()
    pools = [engine.manager.plan().pool for _ in range(2)]
    assert pools == [Pool(1, "memory", 1)] * 2
    engine.link.go_away()
    assert engine.manager.plan().pool is None
    engine.link.come()
    assert engine.manager.plan().pool == Pool(2, "memory", 2)


def test_an_engine_with_memory_of_its_own_has_no_pool() -> None:
    config = OffloadConfig.build(Geometry(groups=FULL, block_bytes=1, device_blocks=8), {"host_per_rank": 4})
    assert OffloadManager(config, BlockPool(8)).plan().pool is None


def test_as_many_slots_are_ready_as_every_rank_has() -> None:
    engine = Engine()
    assert engine.told() == [(1, 0)]
    engine.ready(0, 9, life=1)
    assert engine.told() == [(1, 0)]
    engine.ready(1, 5, life=1)
    assert engine.told() == [(1, 5)]
    engine.manager.report(Report(2, slots_ready=1, life=1), Report(-1, slots_ready=1, life=1), Report(0, life=1))
    assert engine.told() == []


def test_a_new_life_begins_with_nothing_on_any_rank() -> None:
    engine = Engine()
    engine.manager.plan()
    for rank in range(2):
        engine.ready(rank, 9, life=1)
    engine.link.node.restart()
    engine.told()
    engine.ready(0, 7, life=2)
    assert engine.told() == [(2, 0)], "rank 1 has not said anything of it"
    engine.ready(1, 7, life=2)
    assert engine.told() == [(2, 7)]


def test_a_report_of_another_life_changes_nothing() -> None:
    engine = Engine()
    engine.manager.plan()
    engine.link.node.restart()
    engine.told()
    for rank in range(2):
        engine.ready(rank, 9, life=1)
        engine.ready(rank, 9, life=0)
    assert engine.told() == []
    engine.link.go_away()
    engine.manager.plan()
    for rank in range(2):
        engine.ready(rank, 9, life=2)
    engine.link.come()
    assert engine.told() == [(3, 0)]
