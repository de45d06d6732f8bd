"""Scheduler time that kvtide takes per block, and how it grows with the host pool and with what waits to be stored.

    python benchmarks/core.py [--json] [--small]

Store path: `advance` + `plan` + `report` of prompts that are all new, with a full host pool, so that every stored
block evicts another one. Load path: `match` + `reserve` + `admit` + `plan` + `report` of prompts that are cached.
The device pool is the embedded engine's; its pin and unpin calls are part of the time.
Memory is what the manager holds when the pool is full, keys included.
Backlog: one `plan`, while so many chains wait for the pin budget, that starts as many blocks as one report has freed.
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
CHAIN_BLOCKS = 2
STARTED_BLOCKS = 16
"""What a plan starts out of the backlog."""


@dataclass
class Row:
    """Cost per block at one size of the host pool."""

    slots: int
    store_us: float
    load_us: float
    bytes_per_slot: float


@dataclass
class BacklogRow:
    """Cost of a plan at one length of the backlog."""

    chains: int
    plan_ms: float


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


def make_backlog(chains: int, rounds: int) -> OffloadManager:
    """Return a manager for which at least `chains` chains wait, also after `rounds` plans."""
    requests = chains + (rounds + 1) * STARTED_BLOCKS // CHAIN_BLOCKS
    device = BlockPool(requests * CHAIN_BLOCKS)
    geometry = Geometry(groups=(FullAttention(BLOCK_TOKENS),), block_bytes=4096, device_blocks=device.num_blocks)
    options = {"host": 4096 * device.num_blocks, "pin_budget": STARTED_BLOCKS}
    manager = OffloadManager(OffloadConfig.build(geometry, options), device)
    for prompt in range(requests):
        keys, name = make_keys(prompt)[:CHAIN_BLOCKS], f"backlog-{prompt}"
        blocks = device.allocate(CHAIN_BLOCKS)
        assert blocks is not None
        for index, block in enumerate(blocks):
            device.register(block, 0, keys[index], keys[index - 1] if index else None, (index + 1) * BLOCK_TOKENS)
        manager.add_request(name, [keys], [blocks])
        manager.admit(name, 0)
        manager.advance(name, CHAIN_BLOCKS * BLOCK_TOKENS)
        manager.finish(name)
        device.free(blocks)
    return manager


def measure_backlog(lengths: list[int], rounds: int) -> list[BacklogRow]:
    """Time `rounds` plans; lengths take turns."""
    managers = [(chains, make_backlog(chains, rounds)) for chains in lengths]
    in_flight = {chains: manager.plan().stores for chains, manager in managers}
    plan_s: dict[int, list[float]] = {chains: [] for chains in lengths}
    for _ in range(rounds):
        for chains, manager in managers:
            manager.report(Report(0, tuple(copy.id for copy in in_flight[chains])))
            begin = time.perf_counter()
            plan = manager.plan()
            plan_s[chains].append(time.perf_counter() - begin)
            in_flight[chains] = plan.stores
            assert sum(len(copy.slots) for copy in plan.stores) == STARTED_BLOCKS
            assert manager.gauges().backlog_blocks >= (chains - 1) * CHAIN_BLOCKS
    return [BacklogRow(chains, round(statistics.median(plan_s[chains]) * 1e3, 4)) for chains in lengths]


def per_block_us(seconds: list[float]) -> float:
    return round(statistics.median(seconds) / PROMPT_BLOCKS * 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--small", action="store_true", help="small pools, a few rounds: shows that it runs")
    args = parser.parse_args()
    sizes, rounds = ([2_000, 5_000], 5) if args.small else ([10_000, 100_000, 1_000_000], 400)
    lengths = [100, 300] if args.small else [1_000, 3_000, 10_000, 30_000]
    backlog = measure_backlog(lengths, rounds)
    rows = measure(sizes, rounds)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "backlog": [asdict(row) for row in backlog]}))
        return
    print(f"{'host slots':>12} {'store':>12} {'load':>12} {'metadata':>14}")
    for row in rows:
        print(f"{row.slots:>12,} {row.store_us:>9.2f} µs {row.load_us:>9.2f} µs {row.bytes_per_slot:>8.0f} B/slot")
    print(f"\n{'chains wait':>12} {'plan':>12}")
    for waiting in backlog:
        print(f"{waiting.chains:>12,} {waiting.plan_ms:>9.3f} ms")


if __name__ == "__main__":
    main()
