"""How much scheduler time does kvtide take per block, and does it grow with the host pool?

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
from kvtide.engine import BlockPool

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


def measure(slots: int, rounds: int) -> Row:
    """Fill a pool of `slots`, then time `rounds` prompts each way."""
    gc.collect()
    prompts = slots // PROMPT_BLOCKS
    tracemalloc.start()
    manager, device = make_manager(slots)
    empty = tracemalloc.get_traced_memory()[0]
    del manager
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    manager, device = make_manager(slots)
    for prompt in range(prompts):
        store(manager, device, prompt)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert empty >= 0
    store_s = [store(manager, device, prompts + turn) for turn in range(rounds)]
    # Stride through the pool, so that what is looked up is not what was just touched.
    newest = prompts + rounds
    load_s = [load(manager, device, newest - 1 - turn * 7 % (prompts - 1), turn) for turn in range(rounds)]
    return Row(
        slots,
        round(statistics.median(store_s) / PROMPT_BLOCKS * 1e6, 3),
        round(statistics.median(load_s) / PROMPT_BLOCKS * 1e6, 3),
        round(held / slots, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--small", action="store_true", help="small pools, a few rounds: shows that it runs")
    args = parser.parse_args()
    sizes, rounds = ([2_000, 5_000], 5) if args.small else ([10_000, 100_000, 1_000_000], 400)
    rows = [measure(slots, rounds) for slots in sizes]
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print(f"{'host slots':>12} {'store':>12} {'load':>12} {'metadata':>14}")
    for row in rows:
        print(f"{row.slots:>12,} {row.store_us:>9.2f} µs {row.load_us:>9.2f} µs {row.bytes_per_slot:>8.0f} B/slot")


if __name__ == "__main__":
    main()
