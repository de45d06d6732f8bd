"""Ranks that hold the same KV keep one packed copy of it (F27)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from kvtide.copy import CopyEngine, Direction, Finished, HostArena, shared_memory
from kvtide.copy.packing.codec import Reference
from kvtide.core.messages import Copy
from kvtide.core.share import Share
from kvtide.errors import CopyError
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


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The blocks of two ranks, the same ones, of which the first three pack."""
    # vLLM's CPU build does not start once numba is imported, which the other one needs.
    monkeypatch.setitem(sys.modules, "kvtide.copy.packing.compiled", Reference())
    same = np.random.default_rng(0).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    for block in range(3):
        same[block] = ordinary(TILES, block).view(np.uint8).reshape(-1)
    return [torch.from_numpy(same.copy().reshape(-1)) for _ in range(2)]


def make_both(tensors: list[torch.Tensor]) -> list[tuple[CopyEngine, HostArena]]:
    meeting = Meeting(2)

    def make(rank: int) -> tuple[CopyEngine, HostArena]:
        sharing = Sharing(Share(rank, 2), rank, meeting.gather)
        copying = Copying(threads=1, staging_bytes=1 << 20, packed=True)
        return make_copy_engine([Stripe(tensors[rank], 0, BLOCK_BYTES)], BLOCKS, SLOTS, copying, sharing)

    return in_parallel(make, range(2))


def test_f27_each_rank_stores_its_share_packed_and_all_load_it_and_what_does_not_pack(
    tensors: list[torch.Tensor],
) -> None:
    same = tensors[0].numpy().reshape(BLOCKS, -1).copy()
    (one, arena), (other, _) = make_both(tensors)
    assert (arena.slots, arena.slot_bytes, arena.shared) == (SLOTS, TILES * 1552, True)
    assert run(one, Direction.STORE, Copy(1, (0, 2), (5, 3))) == Finished(done=(1,))
    assert run(other, Direction.STORE, Copy(1, (1, 3), (4, 2))) == Finished(done=(1,))
    assert run(one, Direction.STORE, Copy(3, (4,), (1,))) == Finished(done=(3,), not_kept=((3, (1,)),)), "one row"
    for engine, tensor in zip((one, other), tensors, strict=True):
        tensor[:] = 0
        assert run(engine, Direction.LOAD, Copy(2, (4, 5, 6, 7), (5, 4, 3, 2))) == Finished(done=(2,))
        assert np.array_equal(tensor.numpy().reshape(BLOCKS, -1)[4:], same[:4])
        assert engine.close(PATIENCE_S)


def test_where_memory_cannot_be_shared_each_rank_has_rows_of_its_own(
    tensors: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> int:
        raise CopyError("the test says so")

    monkeypatch.setattr(shared_memory, "find", refuse)
    for (engine, arena), tensor in zip(make_both(tensors), tensors, strict=True):
        same = tensor.numpy().reshape(BLOCKS, -1).copy()
        assert (arena.slots, arena.shared) == (SLOTS // 2, False)
        assert run(engine, Direction.STORE, Copy(1, (0, 3), (2, 0))) == Finished(done=(1,))
        assert run(engine, Direction.LOAD, Copy(2, (6, 7), (2, 0))) == Finished(done=(2,))
        assert np.array_equal(tensor.numpy().reshape(BLOCKS, -1)[6:], same[[0, 3]])
        assert engine.close(PATIENCE_S)
