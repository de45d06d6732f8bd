"""Two processes that hold the same blocks, one arena: each stores its share, each loads everything (F27)."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from typing import Any

from kvtide.copy import HostArena, shared_memory
from kvtide.copy.cuda import CudaCopyEngine, Route
from kvtide.core.messages import Copy, Plan
from kvtide.core.share import Share
from kvtide.worker import Worker
from tests.contracts.copy_contract import PATIENCE_S

torch: Any = importlib.import_module("torch")

BLOCKS, SLOTS, FRAGMENTS, FRAGMENT_BYTES = 65, 96, 6, 48 << 10
RANKS = 2


def test_two_processes_store_one_copy_and_load_it_by_either_route() -> None:
    spawn = multiprocessing.get_context("spawn")
    for route in Route:
        offer = shared_memory.make(SLOTS * FRAGMENTS * FRAGMENT_BYTES)
        meeting, said = spawn.Barrier(RANKS, timeout=PATIENCE_S), spawn.Queue()
        ranks = [
            spawn.Process(target=_rank, args=(Share(index, RANKS), offer, route.name, meeting, said))
            for index in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        stored = [said.get(timeout=PATIENCE_S) for _ in ranks]
        for rank in ranks:
            rank.join(PATIENCE_S)
        os.close(offer.descriptor)
        assert [rank.exitcode for rank in ranks] == [0, 0]
        assert sum(stored) == (BLOCKS - 1) * FRAGMENTS * FRAGMENT_BYTES, "each byte crossed the link once"


def _rank(share: Share, offer: shared_memory.Offer, route: str, meeting: Any, said: Any) -> None:
    from kvtide.copy.cuda import CudaCache, CudaRegion  # noqa: PLC0415 (in the new process)

    file = shared_memory.find(offer)
    arena = HostArena(SLOTS, FRAGMENTS * FRAGMENT_BYTES, file=file, share=share)
    os.close(file)
    kv = torch.randint(
        0, 256, (FRAGMENTS, BLOCKS, FRAGMENT_BYTES), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    ).cuda()
    expected = kv.clone()
    regions = [CudaRegion(layer.data_ptr(), FRAGMENT_BYTES, FRAGMENT_BYTES, kv) for layer in kv]
    engine = CudaCopyEngine(
        CudaCache(regions, blocks=BLOCKS), arena, route=Route[route], staging_bytes=1 << 20, piece_bytes=4 << 20
    )
    assert engine.pinning.wait(PATIENCE_S)
    assert engine.pinning.problem is None
    worker = Worker(share.index, engine, share=share, wait_timeout_s=PATIENCE_S)
    blocks = tuple(range(1, BLOCKS))
    slots = tuple(dict.fromkeys((*range(0, SLOTS, 5), *range(SLOTS))))[: len(blocks)]  # scattered, then runs
    worker.start(Plan(1, stores=(Copy(1, blocks, slots),), wait_for=(1,)))
    assert worker.poll().done == (1,)
    meeting.wait()
    kv.zero_()
    torch.cuda.synchronize()
    worker.start(Plan(2, loads=(Copy(2, blocks, slots),), wait_for=(2,)))
    assert worker.poll().done == (2,)
    assert torch.equal(kv[:, 1:], expected[:, 1:])
    meeting.wait()
    said.put(worker.stats.store.bytes)
    assert worker.close(PATIENCE_S)
    arena.close()
