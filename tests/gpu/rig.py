"""An engine between a real GPU and a pinned arena, with bytes that tests can see."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kvtide.copy import HostArena
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion
from tests.contracts.copy_contract import PATIENCE_S, Shape
from tests.contracts.copy_rigs import ArenaRig

torch: Any = importlib.import_module("torch")


class CudaRig(ArenaRig):
    """Device memory is one tensor per region, with padding behind each fragment."""

    engine: CudaCopyEngine

    def __init__(self, shape: Shape, *, wait_until_pinned: bool = True, **options: Any) -> None:
        self.tensors = [
            torch.randint(0, 256, (shape.blocks, fragment + shape.padding), dtype=torch.uint8, device="cuda")
            for fragment in shape.fragments
        ]
        torch.cuda.synchronize()
        regions = [
            CudaRegion(tensor.data_ptr(), tensor.stride(0), fragment, tensor)
            for tensor, fragment in zip(self.tensors, shape.fragments, strict=True)
        ]
        arena = self.open_arena(shape, options)
        super().__init__(CudaCopyEngine(CudaCache(regions, blocks=shape.blocks), arena, **options), shape, arena)
        assert not wait_until_pinned or self.engine.pinning.wait(PATIENCE_S)

    def open_arena(self, shape: Shape, options: dict[str, Any]) -> HostArena:
        """Map the host's slots; may add to the options of the engine."""
        return HostArena(shape.slots, shape.block_bytes)

    def read_block(self, block: int) -> bytes:
        pairs = zip(self.tensors, self.shape.fragments, strict=True)
        return b"".join(tensor[block, :fragment].cpu().numpy().tobytes() for tensor, fragment in pairs)

    def write_block(self, block: int, content: bytes) -> None:
        begin = 0
        for tensor, fragment in zip(self.tensors, self.shape.fragments, strict=True):
            tensor[block, :fragment] = torch.from_numpy(
                np.frombuffer(content[begin : begin + fragment], np.uint8).copy()
            )
            begin += fragment
        torch.cuda.current_stream().synchronize()

    def read_padding(self) -> bytes:
        pairs = zip(self.tensors, self.shape.fragments, strict=True)
        return b"".join(tensor[:, fragment:].cpu().numpy().tobytes() for tensor, fragment in pairs)

    def blocks_on_host(self) -> Any:
        """Return all blocks as rows of bytes, in slot order."""
        pairs = zip(self.tensors, self.shape.fragments, strict=True)
        return np.concatenate([tensor[:, :fragment].cpu().numpy() for tensor, fragment in pairs], axis=1)

    def release(self) -> None:
        assert self.engine.close(PATIENCE_S)
        self.arena.close()
