"""Runs the packing kernels in Triton's interpreter and compares all memory with what the reference says."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.packed_tiles import packed_tiles
from kvtide.copy.packing import BlockPacking
from kvtide.copy.packing.format import ESCAPES_MAX, Bytes, Values
from tests.copy.packing.cases import (
    SPECIAL,
    all_patterns,
    each_among_others,
    each_code_everywhere,
    ordinary,
    with_escapes,
)

_GUARD_BYTES = 64
ENDS = [16, 320, 512, 528, 640, 1024, 1120, 1536, 1600, 2032, 2064]
"""Bytes of fragments that end in each group of a tile, or with it."""
_FIRST = 2
"""Pairs of the index before those that are meant."""


class Memory:
    """All that kernels can reach: regions of blocks, then rows, with bytes between them that nobody may touch."""

    def __init__(self, fragments: list[int], gaps: list[int], *, blocks: int, rows: int, device: str = "cpu") -> None:
        self.packing = BlockPacking(fragments)
        self._torch: Any = importlib.import_module("torch")
        strides = [size + gap for size, gap in zip(fragments, gaps, strict=True)]
        begins = np.cumsum([_GUARD_BYTES, *(stride * blocks + _GUARD_BYTES for stride in strides)])
        self._rows_at = int(begins[-1])
        size = self._rows_at + rows * self.packing.packed_bytes + _GUARD_BYTES
        self.tensor = self._torch.full((size + 16,), 0xA5, dtype=self._torch.uint8, device=device)
        self._base = -self.tensor.data_ptr() % 16
        self._views = [
            (self._base + begin, stride, fragment)
            for begin, stride, fragment in zip(begins.tolist(), strides, fragments, strict=False)
        ]
        address = self.tensor.data_ptr()
        self.cache = CudaCache((CudaRegion(address + at, s, f) for at, s, f in self._views), blocks=blocks)
        assert len(self.cache.regions) == len(fragments)

    def block(self, block: int) -> list[slice]:
        return [slice(at + block * stride, at + block * stride + size) for at, stride, size in self._views]

    def row(self, row: int) -> slice:
        begin = self._base + self._rows_at + row * self.packing.packed_bytes
        return slice(begin, begin + self.packing.packed_bytes)

    def put_block(self, memory: Bytes, block: int, values: Bytes) -> None:
        at = 0
        for where in self.block(block):
            memory[where] = values[at : at + where.stop - where.start]
            at += where.stop - where.start

    def run(self, name: str, pairs: list[tuple[int, int]], *, scattered: bool, units: int) -> npt.NDArray[np.int32]:
        """Run a kernel on the pairs; returns what it says of those that do not fit."""
        torch = self._torch
        kernels: Any = importlib.import_module("kvtide.copy.cuda.packing_kernels")
        device = self.tensor.device
        table = torch.from_numpy(packed_tiles(self.cache)).to(device)
        anchor = table.data_ptr() // 4
        assert table.data_ptr() % 16 == 0
        table[0] -= anchor
        index = torch.tensor([(0, 99)] * _FIRST + pairs, dtype=torch.int64, device=device)
        unpacked = torch.zeros(_FIRST + len(pairs), dtype=torch.int32, device=device)
        rows_at = (self.tensor.data_ptr() + self.row(0).start) // 4 - anchor
        flags = (unpacked,) if name == "pack_blocks" else ()
        getattr(kernels, name)[(2,)](
            table.view(torch.int32), table.view(torch.int8), table.view(-1), index.view(-1), *flags,
            _FIRST, len(pairs), table.shape[1], rows_at, self.packing.packed_bytes // 4,
            SCATTERED=scattered, ESCAPES_MAX=ESCAPES_MAX, UNITS=units,
        )  # fmt: skip
        answer: npt.NDArray[np.int32] = unpacked.cpu().numpy()
        assert not answer[:_FIRST].any()
        return answer[_FIRST:]


def compare(
    values: Values, seed: int, device: str = "cpu", units: int = 16, fragments: list[int] | None = None
) -> None:
    """Pack and unpack tiles, in blocks of random geometry: all memory is as the reference says."""
    rng = random.Random(seed)
    if fragments is None:
        fragments = [16 * rng.choice([1, 60, 128, 130, 256, 300]) for _ in range(rng.randint(0, 2))]
        fragments.append(16 * rng.choice([128, 256, 400]))
    gaps = [16 * rng.randint(1, 3) for _ in fragments]
    flat = values.reshape(-1).view(np.uint8)
    count = max(1, flat.size // sum(fragments))
    blocks = np.resize(flat, (count, sum(fragments)))
    memory = Memory(fragments, gaps, blocks=count + 2, rows=count + 1, device=device)
    scattered = rng.random() < 0.5
    block_ids = rng.sample(range(count + 2), count)
    slots = rng.sample(range(count + 1), count) if scattered else list(range(count))
    pairs = list(zip(block_ids, slots, strict=True))

    expected = memory.tensor.cpu().numpy().copy()
    for block, plain in zip(block_ids, blocks, strict=True):
        memory.put_block(expected, block, plain)
    memory.tensor.copy_(_tensor(expected))
    packed = memory.packing.pack(blocks)
    for slot, row in zip(slots, packed.rows, strict=True):
        expected[memory.row(slot)] = row
    unpacked = memory.run("pack_blocks", pairs, scattered=scattered, units=units)
    assert np.array_equal(memory.tensor.cpu().numpy(), expected), f"packed, seed {seed}"
    assert np.array_equal(unpacked, ~packed.fits), f"said not to fit, seed {seed}"

    for block, plain in zip(block_ids, memory.packing.unpack(packed.rows), strict=True):
        memory.put_block(expected, block, plain)
    for block in block_ids:
        for where in memory.block(block):
            memory.tensor[where] = 0x5A
    memory.run("unpack_blocks", pairs, scattered=scattered, units=units)
    assert np.array_equal(memory.tensor.cpu().numpy(), expected), f"unpacked, seed {seed}"


def unpack_noise(device: str = "cpu") -> None:
    """Unpack random bytes: what comes out is what the reference makes of them, and nothing else is written to."""
    memory = Memory([2048, 4096], [16, 32], blocks=6, rows=6, device=device)
    expected = np.random.default_rng(0).integers(0, 256, memory.tensor.numel(), np.uint8)
    memory.tensor.copy_(_tensor(expected))
    rows = np.stack([expected[memory.row(row)] for row in range(6)])
    for block, plain in enumerate(memory.packing.unpack(rows)):
        memory.put_block(expected, block, plain)
    memory.run("unpack_blocks", [(row, row) for row in range(6)], scattered=True, units=4)
    assert np.array_equal(memory.tensor.cpu().numpy(), expected)


def _tensor(values: Bytes) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.from_numpy(values)


def sweep(device: str = "cpu", units: int = 256) -> None:
    """Compare all kinds of values, and all patterns at every place of a group. Many at a time are quicker here."""
    unpack_noise(device)
    compare(np.concatenate([values for values, _ in SPECIAL.values()]), 1, device)
    compare(ordinary(24), 0, device, fragments=ENDS)
    for count in (1, 11, 12, 13, 40):
        compare(with_escapes(count, tiles=12), 2 + count, device)
    for seed in range(6):
        compare(ordinary(12, seed), seed, device, units=8)
    compare(each_among_others()[::7], 60, device, units)
    compare(each_code_everywhere(), 61, device, units)
    for exponent in range(0, 256, 16):
        patterns = [all_patterns(exponent + more) for more in range(16)]
        compare(np.concatenate(patterns), 100 + exponent, device, units)


if __name__ == "__main__":
    sweep()
