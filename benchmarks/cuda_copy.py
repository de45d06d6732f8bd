"""How fast blocks get out of a GPU and back, against one large copy, and what that costs compute.

    python benchmarks/cuda_copy.py [--json results.json] [--gib 1] [--small]
    python benchmarks/cuda_copy.py --only shares --runs 3                  the shares of fragments alone, several times
    python benchmarks/cuda_copy.py --packing [--json results.json]         packed blocks beside plain ones
    python benchmarks/cuda_copy.py --node [--json results.json]            memory of a node beside private memory
    python benchmarks/cuda_copy.py --node --engines 2                      ... with two processes that copy at a time

With `--packing` rates count bytes as they are when they are not packed, so they may exceed one large copy. What `auto`
costs where bits are random is the median of pairs of runs. With `--engines` each process has a part of one arena of a
`kvtide node`, or all to itself, in turn; rates are those of all processes together.

Every rate is GB/s by the wall clock, from the first submit to the last report, the median of `--repeats`, with
`--transfers` in flight in each direction, or one ("alone"). Blocks are scattered over the device; slots follow one
another on the host, or do not ("scattered"). Needs an NVIDIA GPU, torch and Triton.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cuda_engines import engines_at_node
from goals import Goal, at_least, at_most, goal_lines
from kvtide.copy import Direction, HostArena
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, Route, lane, tensor_regions
from kvtide.copy.cuda.issuing import NO_GAPS
from kvtide.copy.cuda.lane_parts import Issued
from kvtide.copy.cuda.ranges import fragment_ranges
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows, rows_for
from kvtide.core.messages import Copy
from kvtide.node.arenas import NodeArena
from kvtide.node.mapped import MappedArena

STORE, LOAD = Direction.STORE, Direction.LOAD
WAYS = {"store": (STORE,), "load": (LOAD,), "both": (STORE, LOAD)}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
Row = dict[str, Any]
UNPACKABLE = "auto, random bits"
PRODUCT, MEMORY = "bf16 matrix product", "memory-bound kernel"
PACKED: dict[str, dict[str, bool]] = {
    "plain": {},
    "packed": {"packed": True},
    UNPACKABLE: {"packed": True, "fits": False, "auto": True},
}


class Bench:
    """A cache of `2 * gib` in fragments of one size, an arena as large, and an engine between them."""

    def __init__(
        self,
        fragment: int,
        args: argparse.Namespace,
        *,
        route: Route | None = None,
        packed: bool = False,
        fits: bool = True,
        auto: bool = False,
        arena: HostArena | None = None,
        first_slot: int = 0,
    ) -> None:
        """`packed`: blocks are packed, and pack, unless they do not (`fits`). `auto`: the first ones decide.

        `arena`: to what somebody else has made, from a slot on.
        """
        self.torch: Any = importlib.import_module("torch")
        self.repeats, self.transfers = args.repeats, args.transfers
        regions, self.half = shape(fragment, args)
        blocks = 2 * self.half
        self.tensors = [self._values(blocks, fragment, fits=fits) for _ in range(regions)]
        self.torch.cuda.synchronize()
        self.cache = CudaCache([r for tensor in self.tensors for r in tensor_regions(tensor, 0)], blocks=blocks)
        block_bytes = self.cache.block_bytes
        slot_bytes = whole_tiles_bytes([block_bytes]) if packed else block_bytes
        slots = blocks * block_bytes // slot_bytes + blocks // 50 + 2 if auto else blocks  # enough if none is packed
        self.is_own_arena = arena is None
        self.arena = HostArena(slots, slot_bytes) if arena is None else arena
        self.first_slot = first_slot
        rows = rows_for(slots) if fits or auto else slots  # blocks that are not kept would be fast
        unpacked = UnpackedRows(HostArena(rows, block_bytes), slots) if packed else None
        trial = PackingTrial(self.arena, unpacked, print) if auto and unpacked is not None else None
        options: Row = {"staging_bytes": args.staging_mib * MIB, "staging_buffers": args.buffers}
        options |= {"unpacked": unpacked, "trial": trial}
        gpu = TorchGpu(programs=args.programs)
        self.engine = CudaCopyEngine(self.cache, self.arena, gpu=gpu, route=route, **options)
        self.engine.share(compute=args.shared)
        for pinning in filter(None, (self.engine.pinning, self.engine.row_pinning)):
            assert pinning.wait(120)
            assert pinning.problem is None, pinning.problem
        self.blocks = np.random.default_rng(0).permutation(blocks).tolist()
        self.next_id = 0
        if trial is not None:
            self._decide(trial)

    def _decide(self, trial: PackingTrial) -> None:
        """Store the first blocks, by which it is decided whether to pack."""
        first = tuple(range(trial.first))
        assert self.engine.submit(STORE, Copy(0, first, first))
        assert self.engine.wait([0], 60)
        assert self.engine.poll().done == (0,)
        assert trial.is_plain
        assert trial.slots() >= 2 * self.half

    def _values(self, blocks: int, fragment: int, *, fits: bool) -> Any:
        """Return normally distributed bfloat16, or random bits."""
        torch = self.torch
        if not fits:
            return torch.randint(0, 256, (blocks, fragment), dtype=torch.uint8, device="cuda")
        return torch.randn((blocks, fragment // 2), dtype=torch.bfloat16, device="cuda").view(torch.uint8)

    def copies(self, way: str, *, scattered: bool = False, parts: int = 1) -> list[tuple[Direction, Copy]]:
        """Return half the cache for each direction, in `parts` transfers; they share neither blocks nor slots."""
        slots = list(range(self.first_slot, self.first_slot + 2 * self.half))
        if scattered:
            slots = np.random.default_rng(1).permutation(slots).tolist()
        copies = []
        for index in range(parts):
            for half, direction in enumerate(WAYS[way]):
                at = half * self.half
                part = slice(at + self.half * index // parts, at + self.half * (index + 1) // parts)
                self.next_id += 1
                copies.append((direction, Copy(self.next_id, tuple(self.blocks[part]), tuple(slots[part]))))
        return copies

    def run(self, way: str, *, scattered: bool, parts: int) -> float:
        """Return the GB/s of half the cache in each direction."""
        copies = self.copies(way, scattered=scattered, parts=parts)
        begin_s = time.perf_counter()
        for direction, copy in copies:
            assert self.engine.submit(direction, copy)
        assert self.engine.wait([copy.id for _, copy in copies], 60)
        spent_s = time.perf_counter() - begin_s
        done, failed, not_kept = self.engine.poll()
        assert len(done) == len(copies), failed
        assert not not_kept, "rates count blocks that are not there"
        return len(WAYS[way]) * self.half * self.cache.block_bytes / spent_s / 1e9

    def rate(self, way: str, *, scattered: bool = False, parts: int | None = None) -> float:
        """Return the median, after a first one that does not count."""
        rates = [self.run(way, scattered=scattered, parts=parts or self.transfers) for _ in range(self.repeats + 1)]
        return statistics.median(rates[1:])

    def close(self) -> None:
        """Give all memory back."""
        assert self.engine.close(60)
        if self.is_own_arena:
            self.arena.close()
        self.tensors.clear()
        self.torch.cuda.empty_cache()


@contextmanager
def bench(fragment: int, args: argparse.Namespace, **how: Any) -> Iterator[Bench]:
    one = Bench(fragment, args, **how)
    try:
        yield one
    finally:
        one.close()


def shape(fragment: int, args: argparse.Namespace) -> tuple[int, int]:
    """Return how many fragments a block has, and how many blocks half a cache."""
    regions = min(64, 16 * MIB // fragment)
    return regions, int(args.gib * GIB) // (regions * fragment)


class OneLargeCopy:
    """The limit: one copy of pinned memory in each direction, by torch alone."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.nbytes = int(args.gib * GIB)
        kind = {"dtype": self.torch.uint8}
        self.device = [self.torch.randint(0, 127, (self.nbytes,), device="cuda", **kind) for _ in range(2)]
        self.host = [self.torch.empty(self.nbytes, pin_memory=True, **kind) for _ in range(2)]
        self.streams = [self.torch.cuda.Stream() for _ in range(2)]

    def run(self, way: str) -> float:
        """Return GB/s."""
        self.torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for direction in WAYS[way]:
            i = int(direction is LOAD)
            with self.torch.cuda.stream(self.streams[i]):
                ends = self.device[i], self.host[i]
                to, source = ends[::-1] if direction is STORE else ends
                to.copy_(source, non_blocking=True)
        self.torch.cuda.synchronize()
        return len(WAYS[way]) * self.nbytes / (time.perf_counter() - begin_s) / 1e9


def in_pairs(one: Bench, other: Bench, way: str) -> tuple[float, float, float]:
    """Run two in turn: the median GB/s of each, and of how many times as fast the second is."""
    pairs = [
        tuple(each.run(way, scattered=False, parts=each.transfers) for each in (one, other))
        for _ in range(one.repeats + 1)
    ][1:]
    rate, other_rate = map(statistics.median, zip(*pairs, strict=True))
    return rate, other_rate, statistics.median(then / first for first, then in pairs)


def against(one: Bench, limit: OneLargeCopy, way: str) -> Row:
    """Run the engine and one large copy in turn: what else the machine does changes from second to second."""
    one.run(way, scattered=False, parts=one.transfers)
    pairs = [(one.run(way, scattered=False, parts=one.transfers), limit.run(way)) for _ in range(one.repeats)]
    rate, limit_rate = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    return {way: rate, f"{way}_limit": limit_rate, f"{way}_share": rate / limit_rate}


def batched_dma(one: Bench) -> Row:
    """The same fragments by `cuMemcpyBatchAsync`: GB/s, and milliseconds of the calling thread."""
    gpu, row = TorchGpu(), Row()
    stream = gpu.stream()
    blocks = np.array(one.blocks[: one.half])
    ranges = fragment_ranges(one.cache, blocks, np.arange(one.half), one.engine.pinning.piece_bytes)
    host = int(one.arena.memory.ctypes.data) + ranges.host
    for way in ("store", "load"):
        to, source = (host, ranges.device) if way == "store" else (ranges.device, host)
        rates, calls_ms = [], []
        for _ in range(2):
            begin_s = time.perf_counter()
            commands = gpu.commands()
            commands.copy(stream, to, source, ranges.size)
            commands.run(NO_GAPS)
            calls_ms.append((time.perf_counter() - begin_s) * 1e3)
            stream.synchronize()
            rates.append(float(ranges.size.sum()) / (time.perf_counter() - begin_s) / 1e9)
        row[way], row[f"{way}_call_ms"] = max(rates), min(calls_ms)
    return row


def host_cost(one: Bench) -> Row:
    """Milliseconds of the worker for a submit of 2,000 blocks (or as many as there are), and of the engine's thread."""
    spent_ms: list[float] = []
    issue = lane.Lane.issue

    def timed(self: lane.Lane, *arguments: Any) -> Issued:
        begin_s = time.thread_time()
        issued = issue(self, *arguments)
        spent_ms.append((time.thread_time() - begin_s) * 1e3)
        return issued

    count = min(2000, one.half)
    copy = Copy(1 << 40, tuple(one.blocks[:count]), tuple(range(count)))
    submit_ms = []
    lane.Lane.issue = timed  # type: ignore[method-assign, assignment]
    try:
        for _ in range(one.repeats):
            begin_s = time.perf_counter()
            assert one.engine.submit(STORE, copy)
            submit_ms.append((time.perf_counter() - begin_s) * 1e3)
            assert one.engine.wait([copy.id], 60)
            one.engine.poll()
    finally:
        lane.Lane.issue = issue  # type: ignore[method-assign]
    return {"blocks": count, "submit_ms": statistics.median(submit_ms), "thread_ms": statistics.median(spent_ms)}


def shares(args: argparse.Namespace) -> Iterator[Row]:
    """Only what the goals are about, in several runs, each with engines of its own."""
    limit = OneLargeCopy(args)
    for run, fragment in product(range(1, args.runs + 1), args.fragments):
        row: Row = {"run": run, "fragment": fragment}
        with bench(fragment, args) as one:
            for way in WAYS:
                row |= against(one, limit, way)
        yield row


def fragments(args: argparse.Namespace) -> Iterator[Row]:
    limit = OneLargeCopy(args)
    for fragment in args.fragments:
        with bench(fragment, args) as one:
            row: Row = {"fragment": fragment, "route": one.engine.route.value, "block": one.cache.block_bytes}
            for way in WAYS:
                row |= against(one, limit, way)
            row |= {f"alone_{way}": one.rate(way, parts=1) for way in WAYS}
            row |= {f"scattered_{way}": one.rate(way, scattered=True) for way in ("store", "load")}
            row["rates"] = dataclasses.asdict(one.engine.rates)
            row["host"] = host_cost(one)
            row["batched_dma"] = batched_dma(one)
        with bench(fragment, args, route=Route.STAGED) as one:
            dma_min, lane._DMA_BYTES_MIN = lane._DMA_BYTES_MIN, 1 << 60
            row["zero_copy"] = {way: one.rate(way, scattered=True) for way in ("store", "load")}
            lane._DMA_BYTES_MIN = dma_min
        yield row


def compute_kernels(torch: Any, names: Sequence[str], small: bool) -> dict[str, Callable[[], object]]:
    size = 1024 if small else 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    x = torch.randn((64 if small else 1024) * MIB // 4, device="cuda")
    y = torch.empty_like(x)
    kernels: dict[str, Callable[[], object]] = {
        PRODUCT: lambda: torch.mm(a, b, out=product),
        MEMORY: lambda: torch.add(x, 1.0, out=y),
    }
    return {name: kernels[name] for name in names}


def packing(args: argparse.Namespace) -> Iterator[Row]:
    """Packed blocks beside plain ones, and random bits, which `auto` leaves as they are: GB/s of bytes not packed."""
    limit = OneLargeCopy(args)
    for fragment in args.fragments:
        row: Row = {"fragment": fragment}
        for name, how in PACKED.items():
            with bench(fragment, args, **how) as one:
                row[name] = {key: value for way in WAYS for key, value in against(one, limit, way).items()}
                row[name] |= {f"scattered_{way}": one.rate(way, scattered=True) for way in ("store", "load")}
                traffic = one.engine.traffic(STORE)
                row[name] |= {"saved_bytes": traffic.saved_bytes, "unpacked_blocks": traffic.unpacked_blocks}
        with bench(fragment, args) as plain, bench(fragment, args, **PACKED[UNPACKABLE]) as auto:
            row["auto_ratio"] = {way: in_pairs(plain, auto, way)[2] for way in WAYS}
        yield row


def at_node(args: argparse.Namespace) -> Iterator[Row]:
    """Copies to and from a node's memory, in turn with private memory: GB/s of both, and the ratio in pairs."""
    for fragment in args.fragments:
        row: Row = {"fragment": fragment}
        if args.engines > 1:
            regions, half = shape(fragment, args)
            make = partial(OneOfSeveral, fragment, args)
            row |= engines_at_node(make, args.engines, 2 * half, regions * fragment, args.repeats)
        else:
            with (
                node_arena(fragment, args) as arena,
                bench(fragment, args) as private,
                bench(fragment, args, arena=arena) as there,
            ):
                for way in WAYS:
                    row[f"{way}_private"], row[way], row[f"{way}_ratio"] = in_pairs(private, there, way)
        yield row


@contextmanager
def node_arena(fragment: int, args: argparse.Namespace) -> Iterator[HostArena]:
    """Make a node's memory, as an engine has it."""
    regions, half = shape(fragment, args)
    node = NodeArena(0, 2 * half, regions * fragment)
    node.touch(lambda: None)
    try:
        with MappedArena(node.descriptor, node.description, follows=True) as arena:
            yield arena
    finally:
        node.close()


class OneOfSeveral:
    """See `cuda_engines.Copier`."""

    def __init__(self, fragment: int, args: argparse.Namespace, arena: HostArena | None, first_slot: int) -> None:
        self._bench = Bench(fragment, args, arena=arena, first_slot=first_slot)
        self.close = self._bench.close

    def copy(self, way: str) -> int:
        """Copy half a cache in each direction."""
        self._bench.run(way, scattered=False, parts=self._bench.transfers)
        return len(WAYS[way]) * self._bench.half * self._bench.cache.block_bytes


def slow_down(args: argparse.Namespace, *kinds: str, kernels: Sequence[str] = (PRODUCT, MEMORY)) -> Iterator[Row]:
    """How much longer compute takes while copies run all the time, and how fast the copies are meanwhile.

    Alone and beside each kind of blocks in turn, because clocks and power drift; medians of the turns' ratios.
    """
    with ExitStack() as stack:
        benches = {kind: stack.enter_context(bench(16 * KIB, args, **PACKED[kind])) for kind in kinds}
        torch = next(iter(benches.values())).torch
        for name, kernel in compute_kernels(torch, kernels, args.small).items():
            count = 8 if args.small else int(300 / time_ms(torch, kernel, 10))
            time_ms(torch, kernel, 2 * count)  # until clocks and power have settled
            for way in WAYS:
                turns: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
                for _ in range(args.repeats):
                    for kind, one in benches.items():
                        turns[kind].append((time_ms(torch, kernel, count), *beside(one, kernel, count, way)))
                for kind, times in turns.items():
                    alone_ms, beside_ms, gbps = map(statistics.median, zip(*times, strict=True))
                    row = {"kernel": name, "way": way, "blocks": kind, "alone_ms": alone_ms, "beside_ms": beside_ms}
                    row["slow_down"] = statistics.median(along / alone - 1 for alone, along, _ in times)
                    yield row | {"copy_gbps": gbps}


def time_ms(torch: Any, kernel: Callable[[], object], count: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        kernel()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / count


def beside(one: Bench, kernel: Callable[[], object], count: int, way: str) -> tuple[float, float]:
    """Return the milliseconds of a kernel while many transfers are in flight, and their GB/s meanwhile."""

    def moved_bytes() -> int:
        return sum(one.engine.traffic(direction).bytes for direction in Direction)

    copies = [copy for _ in range(32) for copy in one.copies(way, parts=16)]  # as many as may be in flight
    for direction, copy in copies:
        assert one.engine.submit(direction, copy)
    time.sleep(0.01)
    before, begin_s = moved_bytes(), time.perf_counter()
    beside_ms = time_ms(one.torch, kernel, count)
    moved, spent_s = moved_bytes() - before, time.perf_counter() - begin_s
    ids = [copy.id for _, copy in copies]
    assert not one.engine.wait(ids, 0.0), "the copies ended before the compute"
    assert one.engine.wait(ids, 60)
    assert not one.engine.poll().failed
    return beside_ms, moved / spent_s / 1e9


def pinning(args: argparse.Namespace) -> Row:
    """Seconds to pin, and how long a small kernel takes from launch to end meanwhile."""
    torch: Any = importlib.import_module("torch")
    tensor = torch.zeros((16, MIB), dtype=torch.uint8, device="cuda")
    cache = CudaCache(tensor_regions(tensor, 0), blocks=16)
    x = torch.zeros(16, device="cuda")

    def probe() -> float:
        begin_s = time.perf_counter()
        x.add_(1)
        torch.cuda.current_stream().synchronize()
        return (time.perf_counter() - begin_s) * 1e6

    probe()
    alone = sorted(probe() for _ in range(2000))
    arena = HostArena(slots=int(args.pin_gib * 1024), slot_bytes=MIB)
    begin_s = time.perf_counter()
    engine = CudaCopyEngine(cache, arena)
    made_s = time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    during = []
    while not engine.pinning.wait(0.0):
        during.append(probe())
    during.sort()
    row = {
        "gib": args.pin_gib,
        "engine_s": made_s,
        "s_per_gib": (time.perf_counter() - begin_s) / args.pin_gib,
        "alone_us": {"p50": alone[len(alone) // 2], "p99": alone[len(alone) * 99 // 100], "max": alone[-1]},
        "during_us": {"p50": during[len(during) // 2], "p99": during[len(during) * 99 // 100], "max": during[-1]},
        "problem": engine.pinning.problem,
    }
    begin_s = time.perf_counter()
    assert engine.close(60)
    return row | {"close_s": time.perf_counter() - begin_s}


def print_shares(rows: list[Row]) -> None:
    """Shares of one large copy: the lowest and the highest of all runs."""
    print(f"\nruns: {max(row['run'] for row in rows)}, share of one large copy, lowest and highest")
    print(f"\n| fragment | {' | '.join(WAYS)} |\n|{'---|' * (1 + len(WAYS))}")
    for fragment in dict.fromkeys(row["fragment"] for row in rows):
        same = [row for row in rows if row["fragment"] == fragment]
        ends = ([end(row[f"{way}_share"] for row in same) for end in (min, max)] for way in WAYS)
        print(f"| {fragment // KIB} KiB | {' | '.join(f'{low:.1%} to {high:.1%}' for low, high in ends)} |")


def goals(results: Row) -> Iterator[Goal]:
    """Compare what was measured with what was to be reached: the worst of all fragments and runs."""
    plain = [*results.get("shares", []), *results.get("fragments", [])]
    for way, least in (("store", 0.95), ("load", 0.95), ("both", 0.9)) if plain else ():
        yield at_least(f"{way}, lowest share of one large copy", min(row[f"{way}_share"] for row in plain), least)
    large = [row for row in results.get("packing", []) if row["fragment"] >= 8 * KIB]
    for way, least in (("store", 1.2), ("load", 1.2), ("both", 1.15)) if large else ():
        yield at_least(f"packed, {way}, of one large copy", min(row["packed"][f"{way}_share"] for row in large), least)
    for way in WAYS if "packing" in results else ():
        slowest = min(row["auto_ratio"][way] for row in results["packing"])
        yield at_least(f"{UNPACKABLE}, {way}, times as fast as plain", slowest, 0.99)
    costs = {(row["kernel"], row["way"], row["blocks"]): row["slow_down"] for row in results.get("slow_down", [])}
    for way in [way for way in WAYS if (PRODUCT, way, "packed") in costs]:
        points = 100 * (costs[PRODUCT, way, "packed"] - costs[PRODUCT, way, "plain"])
        yield at_most(f"{PRODUCT} beside packed copies, {way}, points slower than beside plain ones", points, 3.0)
    for way in WAYS if results.get("node") else ():
        slowest = min(row[f"{way}_ratio"] for row in results["node"])
        yield at_least(f"node, {way}, of the rate of private memory", slowest, 0.97)


def print_fragments(rows: list[Row]) -> None:
    """GB/s, in brackets as a share of one large copy."""
    limits = (f"{way} {statistics.median(row[f'{way}_limit'] for row in rows):.1f}" for way in WAYS)
    print("one large pinned copy, GB/s: " + ", ".join(limits))
    head = ("fragment", "route", *WAYS, "alone", "scattered slots", "batched DMA", "zero-copy", "submit / thread ms")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        ways = " | ".join(f"{row[way]:.1f} ({row[f'{way}_share']:.1%})" for way in WAYS)
        dma, kernel, host = row["batched_dma"], row["zero_copy"], row["host"]
        print(
            f"| {row['fragment'] // KIB} KiB | {row['route']} | {ways} "
            f"| {row['alone_store']:.1f} / {row['alone_load']:.1f} / {row['alone_both']:.1f} "
            f"| {row['scattered_store']:.1f} / {row['scattered_load']:.1f} | {dma['store']:.1f} / {dma['load']:.1f} "
            f"| {kernel['store']:.1f} / {kernel['load']:.1f} "
            f"| {host['submit_ms']:.3f} / {host['thread_ms']:.1f} for {host['blocks']} |"
        )


def print_packing(rows: list[Row]) -> None:
    """GB/s of unpacked bytes, in brackets as a share of one large copy."""
    head = ("fragment", "blocks", *WAYS, "scattered slots")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        for name in PACKED:
            of = row[name]
            ways = " | ".join(f"{of[way]:.1f} ({of[f'{way}_share']:.1%})" for way in WAYS)
            scattered = f"{of['scattered_store']:.1f} / {of['scattered_load']:.1f}"
            print(f"| {row['fragment'] // KIB} KiB | {name} | {ways} | {scattered} |")
        ratios = " | ".join(f"{row['auto_ratio'][way]:.3f}" for way in WAYS)
        print(f"| {row['fragment'] // KIB} KiB | {UNPACKABLE}: times as fast as plain, in pairs | {ratios} | |")


def print_at_node(rows: list[Row], engines: int) -> None:
    """GB/s at the node of all engines together, and how many times as fast as with private memory that is."""
    print(f"\nengines that copy at the same time: {engines}\n")
    print(f"| fragment | {' | '.join(WAYS)} |\n|{'---|' * (1 + len(WAYS))}")
    for row in rows:
        ways = (f"{row[way]:.1f} ({row[f'{way}_ratio']:.3f} of {row[f'{way}_private']:.1f})" for way in WAYS)
        print(f"| {row['fragment'] // KIB} KiB | {' | '.join(ways)} |")


def print_slow_down(rows: list[Row]) -> None:
    """GB/s are those of the link."""
    head = ("compute", "copies", "blocks", "alone ms", "beside ms", "slow-down", "copies GB/s")
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(
            f"| {row['kernel']} | {row['way']} | {row['blocks']} | {row['alone_ms']:.3f} | {row['beside_ms']:.3f} "
            f"| {row['slow_down']:.1%} | {row['copy_gbps']:.1f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="keep all numbers in this file, written row by row")
    parser.add_argument("--only", choices=("fragments", "shares", "slow_down", "pinning"), help="one part alone")
    parser.add_argument("--runs", type=int, default=3, help="of --only shares (default: 3)")
    parser.add_argument("--packing", action="store_true", help="packed blocks beside plain ones, and nothing else")
    parser.add_argument("--node", action="store_true", help="memory of a node beside private memory, and nothing else")
    parser.add_argument("--engines", type=int, default=1, help="with --node: processes that copy at the same time")
    parser.add_argument("--gib", type=float, default=1.0, help="GiB of one transfer")
    parser.add_argument("--pin-gib", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--transfers", type=int, default=4, help="in flight in each direction")
    parser.add_argument("--staging-mib", type=int, default=64)
    parser.add_argument("--buffers", type=int, default=2)
    parser.add_argument("--programs", type=int, default=256)
    parser.add_argument("--shared", action="store_true", help="leave gaps for small copies of others")
    parser.add_argument("--small", action="store_true", help="little memory and few repeats: does it run?")
    parser.add_argument(
        "--fragments", type=int, nargs="+", default=[n * KIB for n in (2, 4, 8, 16, 64, 256, 1024, 4096)]
    )
    args = parser.parse_args()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    if args.engines > 1 and not args.node:
        parser.error("--engines: expected --node")
    if args.small:
        args.gib, args.pin_gib, args.repeats, args.fragments = 0.125, 0.25, 1, [2 * KIB, 1 * MIB]
    return args


def main() -> None:
    args = parse()
    torch: Any = importlib.import_module("torch")
    triton: Any = importlib.import_module("triton")
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    staging = f"{args.buffers} buffers of {args.staging_mib} MiB each way, {args.programs} programs"
    results: Row = {"machine": machine, "staging": staging}
    print(f"{machine}; {staging}")

    def keep(name: str, rows: Iterable[Row]) -> list[Row]:
        """Take rows as they come: what is there is not lost when the next one fails."""
        kept: list[Row] = []
        results[name] = kept
        for row in rows:
            kept.append(row)
            print(f"==> {name}: {json.dumps(row)}", file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
        return kept

    if args.packing:
        print_packing(keep("packing", packing(args)))
        print_slow_down(keep("slow_down", slow_down(args, "plain", "packed", kernels=[PRODUCT])))
    elif args.node:
        print_at_node(keep("node", at_node(args)), args.engines)
    elif args.only == "shares":
        print_shares(keep("shares", shares(args)))
    else:
        if args.only in {None, "fragments"}:
            print_fragments(keep("fragments", fragments(args)))
        if args.only in {None, "slow_down"}:
            print_slow_down(keep("slow_down", slow_down(args, "plain")))
        if args.only in {None, "pinning"}:
            print("\npinning:", json.dumps(keep("pinning", [pinning(args)])[0]))
    print("\n".join(goal_lines(goals(results), small=args.small)))


if __name__ == "__main__":
    main()
