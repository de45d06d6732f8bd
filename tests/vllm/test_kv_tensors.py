"""Where blocks are in vLLM's tensors: what is stored from one block and loaded into another is the whole block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvtide.copy import Direction, HostArena, cuda
from kvtide.core import Copy
from kvtide.errors import ConfigError
from kvtide.vllm import kv_tensors, versions
from kvtide.vllm.options import Copying
from tests.copy.cuda.fake_gpu import FakeGpu

BLOCKS = 6
LAYERS = 3
SHAPES = {
    "keys and values outside (FlashAttention)": ((2, BLOCKS, 16, 2, 8), 1),
    "blocks outside": ((BLOCKS, 2, 16, 2, 8), 0),
    "one latent (MLA)": ((BLOCKS, 16, 24), 0),
}


def per_layer(shape: tuple[int, ...]) -> tuple[dict[str, torch.Tensor], Any]:
    """Return tensors and configuration as vLLM has them up to 0.28: an allocation for each layer."""
    random = torch.Generator().manual_seed(3)
    tensors = {f"layer{n}": torch.randn(*shape, generator=random) for n in range(LAYERS)}
    placed = [SimpleNamespace(size=each.nbytes, shared_by=[name], block_stride=0) for name, each in tensors.items()]
    return tensors, SimpleNamespace(num_blocks=BLOCKS, kv_cache_tensors=placed)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_of_an_allocation_per_layer_moves_as_a_whole(shape: str) -> None:
    sizes, axis = SHAPES[shape]
    tensors, config = per_layer(sizes)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    stripes = kv_tensors.stripes_of(tensors, config)
    engine, arena = kv_tensors.make_copy_engine(stripes, BLOCKS, 2, Copying(threads=1, staging_bytes=1))
    try:
        assert arena.slot_bytes == versions.block_bytes(config)
        for direction, block in ((Direction.STORE, 2), (Direction.LOAD, 5)):
            assert engine.submit(direction, Copy(block, (block,), (1,)))
            assert engine.wait((block,), timeout_s=30)
            assert engine.poll().done == (block,)
    finally:
        engine.close()
        arena.close()
    for name, tensor in tensors.items():
        expected = before[name].clone()
        expected.select(axis, 5).copy_(before[name].select(axis, 2))
        assert torch.equal(tensor, expected)


def test_on_a_gpu_all_that_host_memory_comes_and_goes_for_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an engine serves, GPU memory for another life of a node may not be there, and streams are few."""
    gpu = FakeGpu()
    monkeypatch.setattr(cuda, "TorchGpu", lambda _device: gpu)
    address = gpu.adopt(np.zeros(BLOCKS * 4096, np.uint8))
    device = SimpleNamespace(type="cuda", index=0)
    memory: Any = SimpleNamespace(device=device, data_ptr=lambda: address)
    copier = kv_tensors.make_copier([kv_tensors.Stripe(memory, 0, 4096)], BLOCKS, Copying(1, staging_bytes=8192))
    made = len(gpu.allocated), len(gpu._streams)
    assert made[0] > 4, "buffers for both directions"
    for _ in range(3):
        with HostArena(4, 4096) as arena:
            assert copier.engine(arena).close(30)
    assert (len(gpu.allocated), len(gpu._streams)) == made


def test_layers_that_share_an_allocation_are_moved_once() -> None:
    tensors, config = per_layer((BLOCKS, 2, 16, 2, 8))
    tensors["another group"] = tensors["layer0"]
    assert len(kv_tensors.stripes_of(tensors, config)) == LAYERS


def test_an_allocation_that_is_too_small_is_refused() -> None:
    tensors, config = per_layer((BLOCKS, 2, 16, 2, 8))
    placed = SimpleNamespace(layers=["layer0"], layer_stride=2**20, block_stride=2**16, offset=0)
    config.kv_cache_tensors = [placed]
    with pytest.raises(ConfigError, match="layer0"):
        kv_tensors.stripes_of(tensors, config)


def placed_together(blocks: int, *, heads_first: bool, side_by_side: bool = False) -> str:
    """Return the layout of two layers in one allocation, as vLLM has them since 0.29."""
    page = 2 * 16 * 8
    size = (2, 16, 8) if heads_first else (16, 2, 8)
    lying = torch.zeros(blocks, 2, *size) if side_by_side else torch.zeros(2, blocks, *size)
    layers = lying.unbind(1 if side_by_side else 0)
    if heads_first:
        layers = tuple(each.transpose(1, 2) for each in layers)
    stride = 4 * page * (2 if side_by_side else 1)
    placed = SimpleNamespace(
        layers=["a", "b"], layer_stride=4 * page * (1 if side_by_side else blocks), block_stride=stride, offset=0
    )
    config = SimpleNamespace(num_blocks=blocks, kv_cache_tensors=[placed])
    tensors = dict(zip(placed.layers, layers, strict=True))
    return kv_tensors.layout_of(tensors, kv_tensors.stripes_of(tensors, config), blocks)


def test_f23_a_layout_says_how_numbers_lie_and_not_how_many_blocks_there_are() -> None:
    ways = [(first, side) for first in (False, True) for side in (False, True)]
    few = [placed_together(6, heads_first=first, side_by_side=side) for first, side in ways]
    assert len(set(few)) == 4
    assert few == [placed_together(50, heads_first=first, side_by_side=side) for first, side in ways]
    assert few[0] == "torch.float32 1 by block 16 by 64 2 by 32 8 by 4: a 0+0, b 1+0; stripes 1024,1024"
    assert few[1] == "torch.float32 1 by block 16 by 64 2 by 32 8 by 4: a 0+0, b 0+1024; stripes 2048"


def test_f23_a_layout_of_an_allocation_per_layer_tells_orders_and_kinds_apart() -> None:
    def layout(tensor: torch.Tensor, blocks: int = BLOCKS) -> str:
        placed = [SimpleNamespace(size=tensor.nbytes, shared_by=["layer"], block_stride=0)]
        config = SimpleNamespace(num_blocks=blocks, kv_cache_tensors=placed)
        return kv_tensors.layout_of({"layer": tensor}, kv_tensors.stripes_of({"layer": tensor}, config), blocks)

    tokens_first = torch.zeros(2, BLOCKS, 16, 2, 8)
    heads_first = torch.zeros(2, BLOCKS, 2, 16, 8).transpose(2, 3)
    kernel_blocks = torch.zeros(2, 2 * BLOCKS, 8, 2, 8)
    texts = [layout(each) for each in (tokens_first, heads_first, kernel_blocks, tokens_first.int())]
    assert len(set(texts)) == 4
    assert texts[0] == layout(torch.zeros(2, 9, 16, 2, 8), 9)
