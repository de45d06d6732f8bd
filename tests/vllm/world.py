"""vLLM's real scheduler and block pool with both halves of the connector, and stamps instead of a model.

    world = World(tmp_path, groups=[full()], blocks=32)
    request = world.add("a", tokens)
    world.run()                       # until nothing is left to do; checks everything after every step

With decode context parallel there is a worker for each rank, and tokens lie on the ranks in turn; what the workers say
is put together by vLLM's own aggregator.

The KV of a token is 8 bytes that depend on all tokens up to it, the group, the layer and the weights. A step looks
at all KV that attention would read before it writes its own, and at every block that the host calls visible. So a
wrong, late, early or missing copy shows as a wrong stamp in the step in which it happens.
"""

from __future__ import annotations

import copy
import pickle
import random
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvtide.core import NULL_BLOCK, ChunkedLocal, FullAttention, SlidingWindow
from kvtide.vllm import kv_tensors, versions
from kvtide.vllm.connector import KVTideConnector
from kvtide.vllm.worker_side import WorkerSide
from tests.support import host_of
from tests.vllm.engines import Control
from tests.vllm.meeting import Meeting, in_parallel
from tests.vllm.models import write_llama

LAYERS = 2
BLOCK_TOKENS = 16
STAMP_BYTES = 8
VOCAB = 500
WAITS_S = 120.0

_SHAPE: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def full(block_tokens: int = BLOCK_TOKENS, **args: Any) -> KVCacheSpec:
    """A group of full attention."""
    return FullAttentionSpec(block_size=block_tokens, **_SHAPE, **args)


def latent() -> KVCacheSpec:
    """A group of MLA: one vector for each token, which all tensor-parallel ranks have."""
    shape = {**_SHAPE, "head_size": 2}
    return MLAAttentionSpec(block_size=BLOCK_TOKENS, max_tp_shards=1, **shape)


def sliding(window: int, block_tokens: int = BLOCK_TOKENS) -> KVCacheSpec:
    """A group of sliding-window attention."""
    return SlidingWindowSpec(block_size=block_tokens, sliding_window=window, **_SHAPE)


def chunked(chunk: int, block_tokens: int = BLOCK_TOKENS) -> KVCacheSpec:
    """A group of chunked local attention."""
    return ChunkedLocalAttentionSpec(block_size=block_tokens, attention_chunk_size=chunk, **_SHAPE)


def replayed(window: int, block_tokens: int = BLOCK_TOKENS) -> KVCacheSpec:
    """A group of sliding-window attention that is computed again behind every hit, as DeepSeek V4.1 has; the last one.

    It takes no part in prefix caching, so there are no stamps of it.
    """
    shape = {**_SHAPE, "head_size": 2}  # one vector for each token instead of a key and a value
    return SlidingWindowMLASpec(block_size=block_tokens, sliding_window=window, bounded_replay=True, **shape)


def text(seed: int, length: int) -> list[int]:
    """Tokens that depend on nothing but the arguments."""
    return [random.Random(f"{seed}/{i}").randrange(3, VOCAB) for i in range(length)]


def starts_of(step: Any) -> dict[str, int]:
    """Return how many tokens of each request were computed before a step."""
    starts = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
    cached = step.scheduled_cached_reqs
    return starts | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


class World:
    """One engine without a model."""

    def __init__(
        self,
        path: Path,
        *,
        groups: Sequence[KVCacheSpec] | None = None,
        blocks: int = 32,
        host_blocks: int = 64,
        max_tokens: int = 256,
        step_tokens: int = 64,
        max_running: int = 8,
        asynchronous: bool = False,
        old_worker: bool = False,
        one_process: bool = False,
        context_parallel: int = 1,
        tensor_parallel: int = 1,
        control: Control | None = None,
        monkeypatch: Any = None,
        engine_args: dict[str, Any] | None = None,
        node: Path | None = None,
        **options: Any,
    ) -> None:
        specs = list(groups or [full()])
        self.weights = 0
        self.asynchronous = asynchronous
        self.old_worker = old_worker
        """Call the worker's half as vLLM 0.24 does."""
        self.one_process = one_process
        """The worker is where the scheduler is, as vLLM has it for one rank: what it says goes through no pipe."""
        if old_worker:
            monkeypatch.setattr(versions, "FAILS_BY_REQUEST", False)
        model = write_llama(path / "world-model", layers=1)
        self.ranks = max(context_parallel, tensor_parallel)
        page = specs[0].page_size_bytes
        self._waits_for_node = node is not None
        """Whether a step that computes nothing may be one that waits for another process. What a node has is looked at
        when it is loaded."""
        host = {"host_per_rank": host_blocks * page * LAYERS} if node is None else {"node": str(node)}
        transfer = KVTransferConfig(
            kv_connector="KVTideConnector",
            kv_role="kv_both",
            kv_connector_module_path="kvtide.vllm",
            kv_connector_extra_config={**host, **options},
        )
        config = EngineArgs(
            model=str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_tokens,
            max_num_batched_tokens=step_tokens,
            max_num_seqs=max_running,
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=True,
            kv_transfer_config=transfer,
            disable_hybrid_kv_cache_manager=False,
            **(engine_args or {}),
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        config.scheduler_config.async_scheduling = asynchronous
        config.parallel_config.decode_context_parallel_size = context_parallel
        config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = self.ranks
        self.config = config
        self.kv_cache_config = make_kv_cache_config(specs, blocks)
        self.control = control or Control()
        if monkeypatch is not None:
            monkeypatch.setattr(kv_tensors, "make_copy_engine", self.control.make)
            monkeypatch.setattr("kvtide.vllm.connector.gather_in_group", Meeting(self.ranks).gather)
        block_size, hash_size = resolve_kv_cache_block_sizes(self.kv_cache_config, config)
        self.scheduler = (AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=self.kv_cache_config,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
            hash_block_size=hash_size,
            log_stats=True,
        )
        hash_fn = get_hash_fn_by_name("sha256")
        init_none_hash(hash_fn)
        self._hasher = get_request_block_hasher(hash_size, hash_fn)
        self.connector: KVTideConnector = self.scheduler.connector
        self._aggregator = KVOutputAggregator.from_connector(self.connector, self.ranks)
        # kv[rank][layer, block, token]: a stamp
        self.kv: list[npt.NDArray[np.uint64]] = []
        self.workers = [self._make_worker(rank) for rank in range(self.ranks)]
        in_parallel(self._register, range(self.ranks))
        self.free_at_start = self.pool.get_num_free_blocks()
        self.tokens: dict[str, list[int]] = {}
        """Everything a request was given or has generated."""
        self.done: list[str] = []
        self.hits: dict[str, int] = {}
        self.in_flight: list[tuple[Any, Any]] = []
        self.steps = 0
        self._stamps: dict[tuple[int, int], list[int]] = {}
        self._expected: dict[tuple[int, bytes], npt.NDArray[np.uint64]] = {}

    def _make_worker(self, rank: int) -> KVTideConnector:
        self.config.parallel_config.rank = rank
        worker: KVTideConnector = KVConnectorFactory.create_connector(
            config=self.config, role=KVConnectorRole.WORKER, kv_cache_config=self.kv_cache_config
        )
        memory = np.zeros(self.kv_cache_config.kv_cache_tensors[0].size, dtype=np.uint8)
        self.kv.append(memory.view(np.uint64).reshape(LAYERS, self.kv_cache_config.num_blocks, -1))
        return worker

    def _register(self, rank: int) -> None:
        """Hand a rank its KV tensors. All ranks at a time: they may have something to say to each other."""
        storage = torch.from_numpy(self.kv[rank].reshape(-1).view(np.uint8))
        layers = (name for tensor in self.kv_cache_config.kv_cache_tensors for name in tensor.layers)
        self.workers[rank].register_kv_caches(dict.fromkeys(layers, storage))

    # ------------------------------------------------------------------ what tests do

    @property
    def side(self) -> Any:
        """The connector's scheduler side."""
        return self.connector._scheduler

    @property
    def manager(self) -> Any:
        """The core."""
        return self.side.manager

    @property
    def pool(self) -> Any:
        """vLLM's block pool."""
        return self.scheduler.kv_cache_manager.block_pool

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        new_tokens: int = 4,
        *,
        priority: int = 0,
        salt: str | None = None,
        lora: LoRARequest | None = None,
        **params: Any,
    ) -> Request:
        """Add a request."""
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=new_tokens, ignore_eos=True, temperature=0, **params),
            pooling_params=None,
            block_hasher=self._hasher,
            priority=priority,
            cache_salt=salt,
            lora_request=lora,
        )
        request.sampling_params.update_from_generation_config({}, 2)
        self.tokens[name] = list(tokens)
        self.scheduler.add_request(request)
        return request

    def abort(self, *names: str) -> None:
        """End requests early."""
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def step(self) -> Any:
        """Schedule, run, and process the output: at once, or with asynchronous scheduling one step later."""
        step = self.scheduler.schedule()
        output = self._execute(step)
        self.in_flight.append((step, output))
        if len(self.in_flight) > (1 if self.asynchronous else 0):
            self._process(*self.in_flight.pop(0))
        self.steps += 1
        self.check()
        return step

    def process_all(self) -> None:
        """Process the outputs of all steps that were scheduled."""
        while self.in_flight:
            self._process(*self.in_flight.pop(0))

    def run(self, steps: int = 2_000) -> None:
        """Step until the engine would go to sleep. Steps in which it waits for a node do not count, but have an end."""
        end_s = time.monotonic() + WAITS_S
        while steps:
            if not self.scheduler.has_requests():
                self.process_all()
                if not self.scheduler.has_requests():
                    return
            if self.step().total_num_scheduled_tokens or not self._waits_for_node:
                steps -= 1
            else:
                assert time.monotonic() < end_s, "the engine waits for its node for ever"
                time.sleep(0.002)
        raise AssertionError("the engine does not come to rest")

    def generate(self, name: str, tokens: Sequence[int], new_tokens: int = 4) -> int:
        """Run one request to its end; return how many tokens came from the host."""
        before = self.manager.metrics.loaded_tokens
        self.add(name, tokens, new_tokens)
        self.run()
        return int(self.manager.metrics.loaded_tokens - before)

    def evict_device(self) -> None:
        """Let vLLM forget everything, and keep what the host has."""
        assert type(self.pool).reset_prefix_cache(self.pool)  # not the one that kvtide hears of

    def check_at_rest(self) -> None:
        """No waiting, no running, no pins, free count as at the start."""
        assert not self.scheduler.requests
        assert not self.scheduler.running
        assert not self.side._requests.known
        assert not self.manager.busy
        gauges = self.manager.gauges()
        assert (gauges.store_pins, gauges.transfers, gauges.slots_writing, gauges.slots_pinned) == (0, 0, 0, 0)
        assert gauges.backlog_blocks == 0
        assert self.side._device.count_pinned() == 0
        assert self.pool.get_num_free_blocks() == self.free_at_start
        assert gauges.slots_free + gauges.slots_cached == gauges.slots
        for worker in self.workers:
            assert isinstance(worker._worker, WorkerSide)
            assert not worker._worker.loads.untold

    # ------------------------------------------------------------------ the worker

    def _execute(self, step: Any) -> Any:
        for worker in self.workers:
            metadata = _through_a_pipe(step.kv_connector_metadata)
            worker.handle_preemptions(metadata)
            worker.bind_connector_metadata(metadata)
            if self.old_worker:
                worker.start_load_kv(None)
        sampled = self._forward(step)
        outputs = [self._output(step, sampled, self._end_step(worker, step)) for worker in self.workers]
        return outputs[0] if len(outputs) == 1 else self._aggregator.aggregate(outputs)

    def _end_step(self, worker: KVTideConnector, step: Any) -> Any:
        """What one rank does after the forward pass, and says."""
        output = KVConnectorOutput()
        if self.old_worker:
            if step.total_num_scheduled_tokens:
                worker.wait_for_save()
            _, output.finished_recving = worker.get_finished(step.finished_req_ids)
        else:
            worker.start_load_kv(None)
            worker.wait_for_save()
            results = worker.get_transfer_results(step.finished_req_ids)
            output.finished_recving = results.finished_recving or None
            output.failed_recving = results.failed_recving
        output.invalid_block_ids = worker.get_block_ids_with_load_errors()
        output.kv_connector_stats = worker.get_kv_connector_stats()
        said = worker.build_connector_worker_meta()
        output.kv_connector_worker_meta = said if self.one_process else _through_a_pipe(said)
        worker.clear_connector_metadata()
        return output

    def _output(self, step: Any, sampled: dict[str, list[int]], output: Any) -> Any:
        ids = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[sampled[name] for name in ids],
            kv_connector_output=output,
        )

    def _forward(self, step: Any) -> dict[str, list[int]]:
        """Check what is read, write what is computed, sample what follows."""
        starts = starts_of(step)
        sampled: dict[str, list[int]] = {}
        # A request may hit blocks that another one writes in the same step: all write, then all read.
        for name, count in step.num_scheduled_tokens.items():
            start = starts[name]
            if name not in self.hits:
                self.hits[name] = start
            for group in range(len(self.side._layout.group_ids)):
                self._write(name, group, start, start + count)
        for name, count in step.num_scheduled_tokens.items():
            start = starts[name]
            for group in range(len(self.side._layout.group_ids)):
                self._check_reads(name, group, start, start + count)
            tokens = self.tokens[name]
            known = len(tokens)
            if start + count < known:
                sampled[name] = []
            else:
                following = self._next_token(tokens)
                tokens.append(following)
                sampled[name] = [following]
        return sampled

    def _process(self, step: Any, output: Any) -> None:
        for outputs in self.scheduler.update_from_output(step, output).values():
            for result in outputs.outputs:
                if result.finish_reason is not None:
                    self.done.append(result.request_id)
        # Tokens that vLLM has dropped (after a preemption, or past the end) were never generated.
        for name, request in self.scheduler.requests.items():
            ahead = request.num_output_placeholders
            del self.tokens[name][request.num_tokens + ahead :]

    def _write(self, name: str, group: int, first: int, last: int) -> None:
        table = self._table(name, group)
        size = self._block_tokens(group)
        stamps = self._stamps_of(name, group)
        for position in range(first, last):
            block = table[position // size]
            assert block != NULL_BLOCK, f"{name}: token {position} has no block in group {group}"
            for kv, offset in self._where(position, group):
                for layer in range(LAYERS):
                    kv[layer, block, offset] = stamps[position] + layer

    def _check_reads(self, name: str, group: int, first: int, last: int) -> None:
        rule = self.side._layout.geometry.groups[group]
        if isinstance(rule, FullAttention):
            oldest = 0
        elif isinstance(rule, SlidingWindow):
            oldest = max(0, first - rule.window_tokens + 1)
        else:
            assert isinstance(rule, ChunkedLocal)
            oldest = first // rule.chunk_tokens * rule.chunk_tokens
        table, size, stamps = self._table(name, group), rule.block_tokens, self._stamps_of(name, group)
        for position in range(oldest, last):
            block = table[position // size]
            assert block != NULL_BLOCK, f"{name}: token {position} is read and has no block in group {group}"
            for kv, offset in self._where(position, group):
                for layer in range(LAYERS):
                    found = int(kv[layer, block, offset])
                    assert found == stamps[position] + layer, (
                        f"step {self.steps}: {name} reads a wrong token {position} in group {group}, block {block}"
                    )

    def _where(self, position: int, group: int) -> Iterator[tuple[npt.NDArray[np.uint64], int]]:
        """Return the KV of each rank that has a token, and where in its block it is."""
        offset = position % self._block_tokens(group)
        if self._is_sharded(group):
            yield self.kv[position % self.ranks], offset // self.ranks
        else:
            yield from ((kv, offset) for kv in self.kv)

    def _is_sharded(self, group: int) -> bool:
        """Whether the tokens of a block lie on the ranks in turn, not on all of them."""
        if self.config.parallel_config.decode_context_parallel_size == 1:
            return False
        return bool(self.kv_cache_config.kv_cache_groups[group].kv_cache_spec.dcp_sharded)

    # ------------------------------------------------------------------ stamps

    def _table(self, name: str, group: int) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(name)[group])

    def _block_tokens(self, group: int) -> int:
        return int(self.side._layout.geometry.groups[group].block_tokens)

    def _next_token(self, tokens: Sequence[int]) -> int:
        return int.from_bytes(blake2b(repr(tokens).encode(), digest_size=4).digest(), "little") % (VOCAB - 3) + 3

    def _stamps_of(self, name: str, group: int) -> list[int]:
        return self.stamps(self.tokens[name], group)

    def stamps(self, tokens: Sequence[int], group: int) -> list[int]:
        """The KV of each token in layer 0."""
        stamps = []
        state = f"{group}/{self.weights}".encode()
        for token in tokens:
            known = self._stamps.get((hash(state), token))
            if known is None:
                digest = blake2b(state + token.to_bytes(4, "little"), digest_size=16).digest()
                known = [int.from_bytes(digest[:7], "little") * 16, digest]  # type: ignore[list-item]
                self._stamps[hash(state), token] = known
            stamps.append(known[0])
            state = known[1]  # type: ignore[assignment]
        return stamps

    def check(self) -> None:
        """Look at every block that the host calls visible (I3, I4), and at the sums of both pools (I5)."""
        for tracked in self.side._requests.known.values():
            self._learn(tracked)
        for rank, worker in enumerate(self.workers):
            if isinstance(worker._worker, WorkerSide) and worker._worker._arena is not None:
                self._check_host(rank, worker._worker._arena.memory)
        gauges = self.manager.gauges()
        assert gauges.slots_free + gauges.slots_cached + gauges.slots_writing == gauges.slots
        assert gauges.store_pins <= self.side.config.pin_budget_blocks

    def _check_host(self, rank: int, rows: Any) -> None:
        host = host_of(self.manager)
        for group in range(len(self.side._layout.group_ids)):
            for key, slot in host._slot_of[group].items():
                expected = self._expected.get((group, key)) if host.is_cached(group, key) else None
                if expected is not None:
                    found = rows[slot].view(np.uint64).reshape(LAYERS, -1)
                    mine = expected[:, rank :: self.ranks] if self._is_sharded(group) else expected
                    assert np.array_equal(found[:, : mine.shape[1]], mine), (
                        f"step {self.steps}: slot {slot} holds wrong bytes of group {group} on rank {rank}"
                    )

    def _learn(self, tracked: Any) -> None:
        """Work out what the blocks of a request must hold, by key."""
        tokens = self.tokens[tracked.request.request_id]
        for group, keys in enumerate(tracked.keys):
            size = self._block_tokens(group)
            missing = [i for i, key in enumerate(keys) if (group, key) not in self._expected]
            if not missing or (missing[-1] + 1) * size > len(tokens):
                continue
            stamps = self.stamps(tokens[: (missing[-1] + 1) * size], group)
            for index in missing:
                block = np.array(stamps[index * size : (index + 1) * size], dtype=np.uint64)
                self._expected[group, keys[index]] = np.stack([block + np.uint64(layer) for layer in range(LAYERS)])

    def new_weights(self) -> None:
        """Change the weights as an operator would, whatever runs or is copied."""
        assert self.scheduler.reset_prefix_cache(reset_running_requests=True)
        self.process_all()  # what was computed with the old weights
        self.weights += 1
        self._stamps.clear()
        self._expected.clear()


def _through_a_pipe(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))  # noqa: S301 (our own bytes)


def make_kv_cache_config(specs: Sequence[KVCacheSpec], blocks: int) -> KVCacheConfig:
    """Lay groups over each other in one allocation, as vLLM does."""
    page = specs[0].page_size_bytes
    assert len({spec.page_size_bytes for spec in specs}) == 1
    groups = [
        KVCacheGroupSpec([f"group{index}.layer{layer}" for layer in range(LAYERS)], copy.deepcopy(spec))
        for index, spec in enumerate(specs)
    ]
    tensors = [
        KVCacheTensor(
            size=LAYERS * blocks * page, layers=group.layer_names, layer_stride=blocks * page, block_stride=page
        )
        for group in groups
    ]
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)
