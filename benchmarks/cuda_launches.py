"""How much longer a thread takes to launch kernels from Python while blocks are copied.

    python benchmarks/cuda_launches.py [--json results.json] [--passes 15] [--small]

A forward pass without CUDA graphs is bound by the thread that launches its kernels. Here that is 500 layers of three
small kernels each; what is timed is launching them, in milliseconds, the median and the 90th percentile of `--passes`.
Beside them run transfers of 1 GB, blocks of 2 MiB in fragments of 64 KiB as those of Llama 3 8B, issued by C or by
Python (what is done for want of a compiler), and as a limit one large copy, which nobody has to issue piece by piece.

`waits` is how often the launching thread gave up its core in a pass: above all, for the GIL. `lane ms` is the processor
time of the issuing thread for each GB, `GIL ms` what of that it takes the GIL for. Needs an NVIDIA GPU, torch, Triton.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from kvtide.copy import Direction, HostArena
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, Route, lane, tensor_regions
from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.lane_parts import Issued
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.core.messages import Copy

WAYS = {"loads": (Direction.LOAD,), "stores": (Direction.STORE,), "both": (Direction.LOAD, Direction.STORE)}
KIB, GIB = 1 << 10, 1 << 30
REGIONS = 32
Row = dict[str, Any]


class Model:
    """Layers whose kernels take less time than launching them."""

    def __init__(self, torch: Any, layers: int) -> None:
        self._torch = torch
        kinds = [
            part
            for _ in range(layers)
            for part in (torch.nn.Linear(64, 64, bias=False), torch.nn.SiLU(), torch.nn.LayerNorm(64))
        ]
        self._layers = torch.nn.Sequential(*kinds).cuda()
        self._input = torch.randn(16, 64, device="cuda")

    def launch(self) -> tuple[float, int]:
        """Launch one pass; return the milliseconds of that, and how often the thread gave up its core."""
        before = resource.getrusage(resource.RUSAGE_THREAD)
        begin_s = time.perf_counter()
        with self._torch.inference_mode():
            self._layers(self._input)
        spent_ms = (time.perf_counter() - begin_s) * 1e3
        after = resource.getrusage(resource.RUSAGE_THREAD)
        self._torch.cuda.synchronize()
        return spent_ms, after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw


class Transfers:
    """An engine, and as many transfers as keep it busy for a pass."""

    def __init__(self, torch: Any, args: argparse.Namespace, *, in_c: bool) -> None:
        self._blocks = args.blocks
        self._tensors = [
            torch.zeros((2 * self._blocks, 64 * KIB), dtype=torch.uint8, device="cuda") for _ in range(REGIONS)
        ]
        regions = [region for tensor in self._tensors for region in tensor_regions(tensor, 0)]
        self.cache = CudaCache(regions, blocks=2 * self._blocks)
        self._arena = HostArena(2 * self._blocks, self.cache.block_bytes)
        self._in_c, self._gpu = in_c, TorchGpu(in_c=in_c)
        self.engine = CudaCopyEngine(self.cache, self._arena, gpu=self._gpu, route=Route.STAGED)
        assert self.engine.pinning.wait(120)
        self.engine.share(compute=True)
        self._order = np.random.default_rng(0).permutation(2 * self._blocks).tolist()
        self._ids = 0

    def begin(self, way: str, count: int) -> Callable[[], bool]:
        """Begin copies; the answer ends them, and says whether they lasted until then."""
        ids = []
        for _ in range(count):
            for half, direction in enumerate(WAYS[way]):
                part = slice(half * self._blocks, (half + 1) * self._blocks)
                self._ids += 1
                ids.append(self._ids)
                copy = Copy(self._ids, tuple(self._order[part]), tuple(range(part.start, part.stop)))
                assert self.engine.submit(direction, copy)

        def end() -> bool:
            lasted = not self.engine.wait(ids, 0.0)
            assert self.engine.wait(ids, 60)
            failed = self.engine.poll().failed
            assert not failed, failed
            assert self._gpu.in_c == self._in_c, "C did not prove itself"
            return lasted

        return end

    def close(self) -> None:
        """Give all memory back."""
        assert self.engine.close(60)
        self._arena.close()
        self._tensors.clear()


def one_large_copy(torch: Any, args: argparse.Namespace, way: str) -> Callable[[int], Callable[[], bool]]:
    """Return what begins large copies of pinned memory, by torch alone."""
    host = torch.empty(args.blocks * REGIONS * 64 * KIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    stream = torch.cuda.Stream()
    to, source = (device, host) if way == "loads" else (host, device)

    def begin(count: int) -> Callable[[], bool]:
        with torch.cuda.stream(stream):
            for _ in range(count):
                to.copy_(source, non_blocking=True)

        def end() -> bool:
            lasted = not stream.query()
            stream.synchronize()
            return lasted

        return end

    return begin


def measure(model: Model, args: argparse.Namespace, begin: Callable[[int], Callable[[], bool]] | None) -> Row:
    """Return how long launching takes beside what `begin` begins."""
    passes = []
    lasted = []
    for _ in range(args.passes + 2):
        end = begin(args.transfers) if begin is not None else lambda: True
        time.sleep(0.002)  # until they are under way
        passes.append(model.launch())
        lasted.append(end())
    spent_ms, waits = zip(*passes[2:], strict=True)
    cuts = statistics.quantiles(spent_ms, n=10, method="inclusive")
    row = {"p50_ms": statistics.median(spent_ms), "p90_ms": cuts[8], "waits": statistics.median(waits)}
    return row | {"lasted": sum(lasted[2:]) / args.passes}


@contextmanager
def lane_times(spent: dict[str, float]) -> Iterator[None]:
    """Add up what lanes take, in milliseconds: processor time, and the part of it outside of C."""
    issue, by_driver = lane.Lane.issue, Driver.issue

    def timed(self: lane.Lane, *arguments: Any) -> Issued:
        begin_s = time.thread_time()
        issued = issue(self, *arguments)
        spent["lane"] += (time.thread_time() - begin_s) * 1e3
        return issued

    def timed_driver(self: Driver, *arguments: Any) -> None:
        begin_s = time.thread_time()
        by_driver(self, *arguments)
        spent["driver"] += (time.thread_time() - begin_s) * 1e3

    with patch.object(lane.Lane, "issue", timed), patch.object(Driver, "issue", timed_driver):
        yield


def beside_engine(torch: Any, model: Model, args: argparse.Namespace, *, in_c: bool) -> Iterator[Row]:
    transfers = Transfers(torch, args, in_c=in_c)
    for way, directions in WAYS.items():
        spent = {"lane": 0.0, "driver": 0.0}
        with lane_times(spent):
            row = measure(model, args, partial(transfers.begin, way))
        moved_gb = (
            (args.passes + 2) * args.transfers * len(directions) * args.blocks * transfers.cache.block_bytes / 1e9
        )
        row |= {"lane_ms_per_gb": spent["lane"] / moved_gb}
        row["gil_ms_per_gb"] = (spent["lane"] - (spent["driver"] if in_c else 0.0)) / moved_gb
        yield {"beside": way, "by": "C" if in_c else "Python"} | row
    transfers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--layers", type=int, default=500, help="three launches each")
    parser.add_argument("--blocks", type=int, default=500, help="of 2 MiB in a transfer")
    parser.add_argument("--transfers", type=int, default=4, help="in flight in each direction")
    parser.add_argument("--small", action="store_true", help="little memory and few passes: does it run?")
    args = parser.parse_args()
    if args.small:
        args.passes, args.layers, args.blocks = 2, 20, 40
    torch: Any = importlib.import_module("torch")
    model = Model(torch, args.layers)
    rows: list[Row] = []
    for _ in range(2):  # what the machine does otherwise meets all of them
        rows.append({"beside": "nothing", "by": ""} | measure(model, args, None))
        rows += (
            {"beside": way, "by": "one copy"} | measure(model, args, one_large_copy(torch, args, way))
            for way in ("loads", "stores")
        )
        for in_c in (False, True):
            rows += beside_engine(torch, model, args, in_c=in_c)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: ms to launch {3 * args.layers} kernels")
    print(f"{'beside':10}{'issued by':>10}{'p50':>8}{'p90':>8}{'waits':>8}{'lasted':>8}{'lane ms':>9}{'GIL ms':>8}")
    for row in rows:
        print(
            f"{row['beside']:10}{row['by']:>10}{row['p50_ms']:8.1f}{row['p90_ms']:8.1f}{row['waits']:8.0f}"
            f"{row['lasted']:8.0%}{row.get('lane_ms_per_gb', 0):9.2f}{row.get('gil_ms_per_gb', 0):8.2f}"
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
