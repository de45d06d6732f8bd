"""Ranks that hold the same KV keep one packed copy of it (F27)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from kvtide.copy import CopyEngine, Direction, Finished, HostArena
from kvtide.copy.packing.codec import Reference
from kvtide.core.messages import Copy
from kvtide.core.share import Share
from kvtide.vllm.kv_tensors import Stripe, make_copy_engine
from kvtide.vllm.options import Copying
from kvtide.vllm.sharing import Sharing
from tests.copy.packing.cases import ordinary
from tests.vllm.meeting import Meeting, in_parallel

BLOCKS, SLOTS, TILES = 8, 6, 2
BLOCK_BYTES = TILES * 2048
PATIENCE_S = 20.0


def run(engine: CopyEngine, direction: Direction, copy: Copy) -> Finished:
    assert engine.submit(direction, copy)
    assert engine.wait([copy.id], PATIENCE_S)
    return engine.poll()


def test_f27_each_rank_stores_its_share_packed_and_all_load_it_and_nobody_keeps_what_does_not_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # vLLM's CPU build does not start once numba is imported, which the other one needs.
    monkeypatch.setitem(sys.modules, "kvtide.copy.packing.compiled", Reference())
    meeting = Meeting(2)
    same = np.random.default_rng(0).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    for block in range(3):
        same[block] = ordinary(TILES, block).view(np.uint8).reshape(-1)
    tensors = [torch.from_numpy(same.copy().reshape(-1)) for _ in range(2)]

    def make(rank: int) -> tuple[CopyEngine, HostArena]:
        sharing = Sharing(Share(rank, 2), rank, meeting.gather)
        copying = Copying(threads=1, staging_bytes=1 << 20, packed=True)
        return make_copy_engine([Stripe(tensors[rank], 0, BLOCK_BYTES)], BLOCKS, SLOTS, copying, sharing)

    (one, arena), (other, _) = in_parallel(make, range(2))
    assert (arena.slots, arena.slot_bytes) == (SLOTS, TILES * 1552)
    assert run(one, Direction.STORE, Copy(1, (0, 2), (5, 3))) == Finished(done=(1,))
    assert run(other, Direction.STORE, Copy(1, (1, 3), (4, 2))) == Finished(done=(1,), not_kept=((1, (2,)),))
    for engine, tensor in zip((one, other), tensors, strict=True):
        tensor[:] = 0
        assert run(engine, Direction.LOAD, Copy(2, (5, 6, 7), (5, 4, 3))) == Finished(done=(2,))
        assert np.array_equal(tensor.numpy().reshape(BLOCKS, -1)[5:], same[:3])
        assert engine.close(PATIENCE_S)
