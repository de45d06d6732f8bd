"""The paged KV cache of one rank: its share of the heads, in blocks that any group can own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.copy import DeviceCache, regions_of
from kvtide.engine.arrays import Floats, Ints
from kvtide.engine.bfloat16 import narrowed, widened
from kvtide.engine.config import EngineConfig


class RankCache:
    """Pages `[layer of a group, block, key or value, token, head, dim]`; block 0 is the null block.

    Block ids are one space for all groups. A block has one page per layer of the group that owns it, and layer
    `i` of every group uses the same array, so a block is the same memory whichever group owns it.
    """

    def __init__(self, config: EngineConfig, rank: int) -> None:
        model = config.model
        heads = model.kv_heads // config.ranks
        self.heads = slice(rank * heads, (rank + 1) * heads)
        blocks = config.device_blocks + 1
        shape = (config.layers_per_group, blocks, 2, config.block_tokens, heads, model.head_dim)
        self.pages: npt.NDArray[Any] = np.zeros(shape, np.uint16 if config.kv_dtype == "bfloat16" else np.float64)

    def device_cache(self) -> DeviceCache:
        """Return where the bytes of each block are, for whoever copies them."""
        return DeviceCache(regions_of(self.pages, block_axis=1), blocks=self.pages.shape[1])

    def write(self, layer: int, blocks: Ints, offsets: Ints, keys: Floats, values: Floats) -> None:
        """Put this rank's share of keys and values `[token, head, dim]` into the tokens' blocks."""
        pages = self.pages[layer]
        for at, of_all in enumerate((keys, values)):
            own = of_all[:, self.heads]
            pages[blocks, at, offsets] = own if pages.dtype == np.float64 else narrowed(own)

    def read(self, layer: int, blocks: Ints, num_tokens: int) -> tuple[Floats, Floats]:
        """Return the keys and values `[token, head, dim]` of the first `num_tokens` tokens in `blocks`."""
        pages = self.pages[layer]
        shape = (-1, *pages.shape[3:])
        keys, values = (pages[blocks, at].reshape(shape)[:num_tokens] for at in (0, 1))
        return (keys, values) if pages.dtype == np.float64 else (widened(keys), widened(values))
