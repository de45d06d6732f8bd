"""Scheduler time that kvtide takes per block, and how it grows with the host pool.

    python benchmarks/core.py [--json] [--small]

Store path: `advance` + `plan` + `report` of prompts that are all new, with a full host pool, so that every stored
block evicts another one. Load path: `match` + `reserve` + `admit` + `plan` + `report` of prompts that are cached.
The device pool is the embedded engine's; its pin and unpin calls are part of the time.
Memory is what the manager holds when the pool is full, keys included.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import tracemalloc
from dataclasses import asdict, dataclass

from kvtide.core import FullAttention, Geometry, OffloadConfig, OffloadManager, Report
from kvtide.engine.block_pool import BlockPool

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 256
"""4,096 tokens."""


@dataclass
class Row:
    """Cost per block at one size of the host pool."""

    slots: int
    store_us: float
    load_us: float
    bytes_per_slot: float


def make_manager(slots: int) -> tuple[OffloadManager, BlockPool]:
    device = BlockPool(4 * PROMPT_BLOCKS)
    geometry = Geometry(groups=(FullAttention(BLOCK_TOKENS),), block_bytes=4096, device_blocks=device.num_blocks)
    config = OffloadConfig.build(geometry, {"host": 4096 * slots, "pin_budget": device.num_blocks})
    return OffloadManager(config, device), device


def make_keys(prompt: int) -> list[bytes]:
    """32 bytes each, like the SHA-256 keys that vLLM gives; new objects on every call, as for a new request."""
    head = prompt.to_bytes(8, "little") * 3
    return [head + block.to_bytes(8, "little") for block in range(PROMPT_BLOCKS)]


def store(manager: OffloadManager, device: BlockPool, prompt: int) -> float:
    """Compute a new prompt; return the seconds spent in kvtide."""
    keys = make_keys(prompt)
    blocks = device.allocate(PROMPT_BLOCKS)
    assert blocks is not None
    name = f"store-{prompt}"
    manager.add_request(name, [keys], [blocks])
    manager.admit(name, 0)
    begin = time.perf_counter()
    manager.advance(name, PROMPT_BLOCKS * BLOCK_TOKENS)
    plan = manager.plan()
    done = Report(0, tuple(copy.id for copy in plan.stores))
    manager.report(done)
    spent = time.perf_counter() - begin
    assert sum(len(copy.slots) for copy in plan.stores) == PROMPT_BLOCKS
    manager.finish(name)
    device.free(blocks)
    return spent


def load(manager: OffloadManager, device: BlockPool, prompt: int, turn: int) -> float:
    """Revisit a cached prompt; return the seconds spent in kvtide."""
    keys = make_keys(prompt)
    blocks = device.allocate(PROMPT_BLOCKS)
    assert blocks is not None
    name = f"load-{turn}"
    tokens = PROMPT_BLOCKS * BLOCK_TOKENS
    manager.add_request(name, [keys], [blocks])
    begin = time.perf_counter()
    match = manager.match(name, 0, tokens + 1)
    manager.reserve(match)
    manager.admit(name, match.tokens)
    plan = manager.plan()
    outcome = manager.report(Report(0, tuple(copy.id for copy in plan.loads)))
    spent = time.perf_counter() - begin
    assert outcome.loaded == (name,)
    assert match.tokens == tokens
    manager.finish(name)
    device.free(blocks)
    return spent


def fill(slots: int) -> tuple[OffloadManager, BlockPool, float]:
    """Return a manager whose host pool is full, and the bytes that it holds per slot."""
    gc.collect()
    tracemalloc.start()
    manager, device = make_manager(slots)
    for prompt in range(slots // PROMPT_BLOCKS):
        store(manager, device, prompt)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return manager, device, held / slots


def measure(sizes: list[int], rounds: int) -> list[Row]:
    """Time `rounds` prompts each way. Sizes take turns, so that noise of the machine meets all of them alike."""
    pools = [(slots, *fill(slots)) for slots in sizes]
    store_s: dict[int, list[float]] = {slots: [] for slots in sizes}
    load_s: dict[int, list[float]] = {slots: [] for slots in sizes}
    for turn in range(rounds):
        for slots, manager, device, _ in pools:
            store_s[slots].append(store(manager, device, slots // PROMPT_BLOCKS + turn))
    for turn in range(rounds):
        for slots, manager, device, _ in pools:
            # Stride through the pool, so that what is looked up is not what was just touched.
            prompts = slots // PROMPT_BLOCKS
            load_s[slots].append(load(manager, device, prompts + rounds - 1 - turn * 7 % (prompts - 1), turn))
    return [
        Row(slots, per_block_us(store_s[slots]), per_block_us(load_s[slots]), round(bytes_per_slot, 1))
        for slots, _, _, bytes_per_slot in pools
    ]


def per_block_us(seconds: list[float]) -> float:
    return round(statistics.median(seconds) / PROMPT_BLOCKS * 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--small", action="store_true", help="small pools, a few rounds: shows that it runs")
    args = parser.parse_args()
    sizes, rounds = ([2_000, 5_000], 5) if args.small else ([10_000, 100_000, 1_000_000], 400)
    rows = measure(sizes, rounds)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print(f"{'host slots':>12} {'store':>12} {'load':>12} {'metadata':>14}")
    for row in rows:
        print(f"{row.slots:>12,} {row.store_us:>9.2f} µs {row.load_us:>9.2f} µs {row.bytes_per_slot:>8.0f} B/slot")


if __name__ == "__main__":
    main()
