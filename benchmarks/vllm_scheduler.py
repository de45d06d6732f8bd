"""What scheduling costs per stored and per loaded block: kvtide beside vLLM's own offloading.

    .venv-vllm/bin/python benchmarks/vllm_scheduler.py [--json] [--small]

KVTideConnector's scheduler side and vLLM's SimpleCPUOffloadScheduler get the same requests in one process, in turn:
first all calls of one, then of the other, round after round, the order alternating. Both are full all the time, so
every stored block evicts another one. Block pools and requests are vLLM's own; allocating and computing are left out.

Store: `build_connector_meta` and `update_connector_output` of a prompt that is all new, and the end of its request.
Load: `get_num_new_matched_tokens`, `update_state_after_alloc`, `build_connector_meta` and `update_connector_output` of
a prompt that is all cached.
Idle: the calls of a step in which 256 requests decode and none gets a new block.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from kvtide.core import Report
from kvtide.vllm.layout import read_layout
from kvtide.vllm.options import read_options
from kvtide.vllm.scheduler_side import SchedulerSide
from kvtide.vllm.step_messages import WorkerMetadata

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 256
"""4,096 tokens."""
RUNNING = 256


@dataclass
class Row:
    """Microseconds per block at one size of the host pool, and per step without stores or loads."""

    host_blocks: int
    kvtide_store_us: float
    vllm_store_us: float
    kvtide_load_us: float
    vllm_load_us: float
    kvtide_idle_step_us: float
    vllm_idle_step_us: float


class Requests:
    """Makes requests and the pieces of a step."""

    def __init__(self) -> None:
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, hash_fn)
        self._number = 0

    def make(self, prompt: int, tokens: int = PROMPT_BLOCKS * BLOCK_TOKENS + 1) -> Request:
        self._number += 1
        return Request(
            request_id=f"request-{self._number}",
            prompt_token_ids=[prompt, *range(tokens - 1)],
            sampling_params=SamplingParams(max_tokens=4),
            pooling_params=None,
            block_hasher=self._hasher,
        )


def step_of(new: list[Request], block_ids: list[list[int]], cached: list[Request], scheduled: int) -> SchedulerOutput:
    step = SchedulerOutput.make_empty()
    step.scheduled_new_reqs = [
        NewRequestData(
            req_id=request.request_id,
            prompt_token_ids=[],
            mm_features=[],
            sampling_params=None,
            pooling_params=None,
            block_ids=(ids,),
            num_computed_tokens=request.num_computed_tokens,
            lora_request=None,
        )
        for request, ids in zip(new, block_ids, strict=True)
    ]
    step.scheduled_cached_reqs = CachedRequestData(
        req_ids=[request.request_id for request in cached],
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None] * len(cached),
        num_computed_tokens=[request.num_computed_tokens for request in cached],
        num_output_tokens=[1] * len(cached),
    )
    step.num_scheduled_tokens = {request.request_id: scheduled for request in [*new, *cached]}
    step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
    return step


class Device:
    """vLLM's block pool."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks, enable_caching=True, hash_block_size=BLOCK_TOKENS)

    def allocate(self, request: Request, *, cached: bool) -> list[Any]:
        blocks: list[Any] = self.pool.get_new_blocks(PROMPT_BLOCKS)
        if cached:
            self.pool.cache_full_blocks(request, blocks, 0, PROMPT_BLOCKS, BLOCK_TOKENS, 0)
        return blocks

    def free(self, blocks: list[Any]) -> None:
        self.pool.free_blocks(reversed(blocks))


class KVTide:
    """kvtide's scheduler side."""

    def __init__(self, config: Any, kv_cache_config: KVCacheConfig, host_blocks: int, device: Device) -> None:
        layout = read_layout(config, kv_cache_config)
        size = host_blocks * layout.geometry.block_bytes
        options = read_options({"host": size, "pin_budget": layout.geometry.device_blocks}, events=False)
        self.side = SchedulerSide(options.build(layout.geometry), layout, device.pool)

    def match(self, request: Request) -> int:
        return self.side.match(request, 0)[0] or 0

    def placed(self, request: Request, blocks: list[Any], tokens: int) -> None:
        self.side.placed(request, KVCacheBlocks((blocks,)), tokens)

    def plan(self, step: SchedulerOutput) -> Any:
        return self.side.plan(step)

    def report(self, metadata: Any) -> None:
        plan = metadata.plan
        done = tuple(copy.id for copy in plan.loads + plan.stores)
        said = WorkerMetadata((Report(0, done=done),)) if done else None
        self.side.report(KVConnectorOutput(kv_connector_worker_meta=said))
        self.side.take_stats()
        self.side.take_events()

    def finished(self, request: Request, blocks: list[Any]) -> None:
        self.side.finished(request, ([block.block_id for block in blocks],))

    def stored(self, metadata: Any) -> int:
        return sum(len(copy.blocks) for copy in metadata.plan.stores)


class Simple:
    """vLLM's own."""

    def __init__(self, config: Any, kv_cache_config: KVCacheConfig, host_blocks: int, device: Device) -> None:
        per_block = kv_cache_config.kv_cache_tensors[0].size // kv_cache_config.num_blocks
        self.side = SimpleCPUOffloadScheduler(
            config,
            kv_cache_config,
            host_blocks * per_block,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
        )
        self.side.bind_gpu_block_pool(device.pool)

    def match(self, request: Request) -> int:
        return self.side.get_num_new_matched_tokens(request, 0)[0] or 0

    def placed(self, request: Request, blocks: list[Any], tokens: int) -> None:
        self.side.update_state_after_alloc(request, KVCacheBlocks((blocks,)), tokens)

    def plan(self, step: SchedulerOutput) -> Any:
        return self.side.build_connector_meta(step)

    def report(self, metadata: Any) -> None:
        output = KVConnectorOutput()
        if metadata.store_event >= 0:
            output.kv_connector_worker_meta = SimpleCPUOffloadWorkerMetadata({metadata.store_event: 1})
        if metadata.load_event >= 0:
            output.finished_recving = set(metadata.load_event_to_reqs[metadata.load_event])
        self.side.update_connector_output(output)
        self.side.get_stats()
        self.side.take_events()

    def finished(self, request: Request, blocks: list[Any]) -> None:
        self.side.request_finished_all_groups(request, ([block.block_id for block in blocks],))

    def stored(self, metadata: Any) -> int:
        return len(metadata.store_gpu_blocks)


Side = KVTide | Simple


def timed(seconds: list[float], call: Callable[[], Any]) -> Any:
    begin = time.perf_counter()
    result = call()
    seconds.append(time.perf_counter() - begin)
    return result


def store(side: Side, device: Device, requests: Requests, prompt: int) -> float:
    """Compute and finish a new prompt; return the seconds spent in `side`."""
    request = requests.make(prompt)
    seconds: list[float] = []
    side.match(request)
    blocks = device.allocate(request, cached=True)
    side.placed(request, blocks, 0)
    ids = [[block.block_id for block in blocks]]
    side.report(side.plan(step_of([request], ids, [], request.num_tokens)))
    request.num_computed_tokens = request.num_tokens
    metadata = timed(seconds, lambda: side.plan(step_of_later(request)))
    timed(seconds, lambda: side.finished(request, blocks))
    device.free(blocks)
    stored = side.stored(metadata)
    timed(seconds, lambda: side.report(metadata))
    empty = empty_step()
    rest = timed(seconds, lambda: side.plan(empty))
    timed(seconds, lambda: side.report(rest))
    stored += side.stored(rest)
    assert stored == PROMPT_BLOCKS, stored
    return sum(seconds)


def empty_step() -> SchedulerOutput:
    """A step in which others run."""
    step = SchedulerOutput.make_empty()
    step.total_num_scheduled_tokens = 1
    return step


def step_of_later(request: Request) -> SchedulerOutput:
    step = step_of([], [], [request], 1)
    step.scheduled_cached_reqs.new_block_ids = [([],)]
    return step


def load(side: Side, device: Device, requests: Requests, prompt: int) -> float:
    """Load a cached prompt; return the seconds spent in `side`."""
    request = requests.make(prompt)
    seconds: list[float] = []
    tokens = timed(seconds, lambda: side.match(request))
    assert tokens == PROMPT_BLOCKS * BLOCK_TOKENS, tokens
    blocks = device.allocate(request, cached=False)
    timed(seconds, lambda: side.placed(request, blocks, tokens))
    empty = empty_step()
    metadata = timed(seconds, lambda: side.plan(empty))
    timed(seconds, lambda: side.report(metadata))
    request.num_computed_tokens = tokens
    side.finished(request, blocks)
    side.report(side.plan(empty))
    device.free(blocks)
    return sum(seconds)


def idle(side: Side, device: Device, requests: Requests, steps: int) -> float:
    """Return the seconds of one step in which all requests decode inside their blocks."""
    running = [requests.make(10_000_000 + index, tokens=20) for index in range(RUNNING)]
    blocks = [device.pool.get_new_blocks(2) for _ in running]
    for request, own in zip(running, blocks, strict=True):
        side.match(request)
        side.placed(request, own, 0)
    ids = [[block.block_id for block in own] for own in blocks]
    side.report(side.plan(step_of(running, ids, [], 20)))
    for request in running:
        request.num_computed_tokens = 20
    first = step_of([], [], running, 1)
    side.report(side.plan(first))
    seconds: list[float] = []
    for _ in range(steps):
        timed(seconds, lambda: side.report(side.plan(first)))
    for request, own in zip(running, blocks, strict=True):
        side.finished(request, own)
        device.free(own)
    side.report(side.plan(SchedulerOutput.make_empty()))
    return statistics.median(seconds)


def make_config(path: Path) -> Any:
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
    }
    (path / "config.json").write_text(json.dumps(model))
    args = EngineArgs(
        model=str(path),
        skip_tokenizer_init=True,
        block_size=BLOCK_TOKENS,
        max_model_len=8192,
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVTideConnector", kv_connector_module_path="kvtide.vllm", kv_role="kv_both"
        ),
    )
    return args.create_engine_config()


def make_kv_cache_config(blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    page = spec.page_size_bytes
    tensor = KVCacheTensor(size=blocks * page, layers=["layer"], layer_stride=blocks * page, block_stride=page)
    return KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[tensor], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


def measure(config: Any, host_blocks: int, rounds: int, idle_steps: int) -> Row:
    device_blocks = 4 * PROMPT_BLOCKS + 2 * RUNNING + 1
    kv_cache_config = make_kv_cache_config(device_blocks)
    requests = Requests()
    sides: list[tuple[Side, Device]] = []
    for make in (KVTide, Simple):
        device = Device(device_blocks)
        sides.append((make(config, kv_cache_config, host_blocks, device), device))
    store_s: list[list[float]] = [[], []]
    load_s: list[list[float]] = [[], []]
    fill = host_blocks // PROMPT_BLOCKS + 1
    gc.disable()
    for number in range(fill + rounds):
        for index in ((0, 1), (1, 0))[number % 2]:
            side, device = sides[index]
            seconds = store(side, device, requests, number)
            if number >= fill:
                store_s[index].append(seconds)
                load_s[index].append(load(side, device, requests, number))
        if number % 64 == 0:
            gc.collect()
    idle_s = [idle(side, device, requests, idle_steps) for side, device in sides]
    gc.enable()

    def us(seconds: list[float]) -> float:
        return round(statistics.median(seconds) / PROMPT_BLOCKS * 1e6, 3)

    return Row(
        host_blocks,
        kvtide_store_us=us(store_s[0]),
        vllm_store_us=us(store_s[1]),
        kvtide_load_us=us(load_s[0]),
        vllm_load_us=us(load_s[1]),
        kvtide_idle_step_us=round(idle_s[0] * 1e6, 1),
        vllm_idle_step_us=round(idle_s[1] * 1e6, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--small", action="store_true", help="a quick run that only shows that it works")
    args = parser.parse_args()
    sizes, rounds, idle_steps = ((2_000,), 3, 20) if args.small else ((20_000, 500_000), 60, 300)
    with tempfile.TemporaryDirectory() as path:
        config = make_config(Path(path))
        rows = [measure(config, size, rounds, idle_steps) for size in sizes]
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print("µs per block        store             load        µs per idle step, 256 running")
    print("host blocks    kvtide    vLLM    kvtide    vLLM    kvtide    vLLM")
    for row in rows:
        print(
            f"{row.host_blocks:11,} {row.kvtide_store_us:9.2f} {row.vllm_store_us:7.2f} {row.kvtide_load_us:9.2f} "
            f"{row.vllm_load_us:7.2f} {row.kvtide_idle_step_us:9.1f} {row.vllm_idle_step_us:7.1f}"
        )


if __name__ == "__main__":
    main()
