"""Why the disk tier evicts whole segments: what that costs in hits, and what it gives in speed of writing.

    python benchmarks/tiers_eviction.py TRACE [--json] [--folder PATH]
    python benchmarks/tiers_eviction.py --small [--json]      a synthetic workload: shows that it runs

Hits: the share of a trace's block hashes that hit, where one hits only if all before it in the same prompt hit. A free
list evicts single blocks, the least recently used first; segments are evicted whole, the least recently used or the
oldest first; there are 32 or 1,024 of them. Sizes are percentages of the unique blocks. Writing: blocks in the order of
a file, and in random order, over a file that has been written before, with the same I/O mode.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kvtide.core.groups import Key
from kvtide.tiers.disk.aligned import aligned
from kvtide.tiers.disk.file_io import open_file, probe
from kvtide.traces import open_trace
from kvtide.traces.consistency import consistent
from kvtide.traces.policy_run import as_keys
from kvtide.traces.workloads import Workload

PERCENTS = (5, 10, 20, 40)


@dataclass
class HitRow:
    percent: int
    free_list: float
    lru_1024: float
    lru_32: float
    fifo_1024: float
    fifo_32: float


@dataclass
class WriteRow:
    block_bytes: int
    in_order_gbps: float
    random_gbps: float


class Cache:
    """Blocks in segments of `per_segment`; one block each is a free list."""

    def __init__(self, blocks: int, per_segment: int, *, touch: bool) -> None:
        self._segments_max = max(1, blocks // per_segment)
        self._per_segment = per_segment
        self._touch = touch
        self._where: dict[Key, int] = {}
        self._segments: OrderedDict[int, list[Key]] = OrderedDict()
        self._next = 0

    def hit(self, key: Key) -> bool:
        number = self._where.get(key)
        if number is not None and self._touch:
            self._segments.move_to_end(number)
        return number is not None

    def put(self, key: Key) -> None:
        if key in self._where:
            return
        active = self._segments.get(self._next)
        if active is None or len(active) == self._per_segment:
            self._next += 1
            active = self._segments[self._next] = []
            if len(self._segments) > self._segments_max:
                _, evicted = self._segments.popitem(last=False)
                for old in evicted:
                    del self._where[old]
        active.append(key)
        self._where[key] = self._next


def hit_ratio(prompts: Sequence[Sequence[Key]], cache: Cache) -> float:
    hits = uses = 0
    for prompt in prompts:
        uses += len(prompt)
        for key in prompt:
            if not cache.hit(key):
                break
            hits += 1
        for key in prompt:
            cache.put(key)
    return round(hits / uses, 4)


def measure_hits(prompts: Sequence[Sequence[Key]]) -> list[HitRow]:
    unique = len({key for prompt in prompts for key in prompt})
    rows = []
    for percent in PERCENTS:
        blocks = max(1, unique * percent // 100)
        variants = [(1, True)] + [(max(1, blocks // count), touch) for touch in (True, False) for count in (1024, 32)]
        rows.append(
            HitRow(percent, *(hit_ratio(prompts, Cache(blocks, size, touch=touch)) for size, touch in variants))
        )
    return rows


def measure_writes(folder: Path, sizes: Sequence[int], total_bytes: int, rounds: int) -> list[WriteRow]:
    rows = []
    file = open_file(folder / "file", probe(folder), create=True)
    for block_bytes in sizes:
        memory = aligned(block_bytes)
        offsets = [number * block_bytes for number in range(total_bytes // block_bytes)]
        shuffled = random.Random(1).sample(offsets, len(offsets))  # noqa: S311 - an order, not a secret
        seconds: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(rounds + 1):
            for kind, order in enumerate((offsets, shuffled)):
                begin_s = time.perf_counter()
                for offset in order:
                    os.pwrite(file, memory, offset)
                seconds[kind].append(time.perf_counter() - begin_s)
        speeds = [round(total_bytes / statistics.median(seconds[kind][1:]) / 1e9, 3) for kind in (0, 1)]
        rows.append(WriteRow(block_bytes, *speeds))
    os.close(file)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a trace, as `kvtide replay` reads it")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--small", action="store_true", help="a synthetic workload and little data: shows that it runs")
    parser.add_argument("--folder", help="where writing is measured (default: the folder for temporary files)")
    args = parser.parse_args()
    if (args.trace is None) != args.small:
        parser.error("either TRACE or --small")
    source = Workload(requests=300) if args.small else open_trace(args.trace)
    prompts = [as_keys(request.hashes) for request in consistent(source)]
    hits = measure_hits(prompts)
    sizes, total_bytes, rounds = ((1 << 20,), 8 << 20, 1) if args.small else ((64 << 10, 1 << 20), 512 << 20, 5)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        writes = measure_writes(Path(folder), sizes, total_bytes, rounds)
    if args.json:
        print(json.dumps({"hits": [asdict(row) for row in hits], "writes": [asdict(row) for row in writes]}))
        return
    print("  size  free list  LRU, 1024 segments   LRU, 32  FIFO, 1024  FIFO, 32   prefix-hit ratio")
    for row in hits:
        print(
            f"{row.percent:>5}% {row.free_list:>10.4f} {row.lru_1024:>19.4f} {row.lru_32:>9.4f} {row.fifo_1024:>11.4f} "
            f"{row.fifo_32:>9.4f}"
        )
    for write in writes:
        speeds = f"in order {write.in_order_gbps:.2f} GB/s, random {write.random_gbps:.2f} GB/s"
        print(f"{write.block_bytes >> 10:>5} KiB {speeds}")


if __name__ == "__main__":
    main()
