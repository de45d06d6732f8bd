"""The embedded engine: serves requests on a small transformer, and shows how an engine uses kvtide."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvtide.core.manager import OffloadManager
from kvtide.engine.block_pool import BlockPool
from kvtide.engine.config import EngineConfig
from kvtide.engine.keys import extend_keys, namespace
from kvtide.engine.kv_cache import RankCache
from kvtide.engine.model import Chunk, Model
from kvtide.engine.offloading import CopyEngineFactory, Offloading, read_options, threaded_copy_engine
from kvtide.engine.request import Completion, Request
from kvtide.engine.scheduler import Scheduler, Work
from kvtide.engine.stats import EngineStats
from kvtide.errors import ProtocolError, RequestRefused


class Engine:
    """Continuous batching over a paged KV cache, with the KV of past requests kept on the host if asked to.

    `offload` are the options of `OffloadConfig.build`, and `tiers` (`kvtide.tiers.parse_tiers`), or `node`, the socket
    of a `kvtide node` that keeps host blocks for all engines of this machine; None means no offloading. Where KV is
    kept in bfloat16, `packing` (`on`, `off`) packs it on the host. The output is the same with and without offloading,
    and does not depend on the size of the pools, chunks, ranks, or on what fails; only the time does.

    Examples:
        >>> from kvtide.engine import Engine, EngineConfig, ModelConfig
        >>> model = ModelConfig(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=32, vocab=64)
        >>> config = EngineConfig(model=model, device_blocks=32)
        >>> with Engine(config, offload={"host": "1MiB"}) as engine:
        ...     engine.submit("a", prompt_token_ids=range(40), max_new_tokens=3)
        ...     [(done.request_id, len(done.tokens)) for done in engine.run()]
        [('a', 3)]

    """

    def __init__(
        self,
        config: EngineConfig,
        offload: Mapping[str, object] | None = None,
        *,
        copy_engine: CopyEngineFactory = threaded_copy_engine,
    ) -> None:
        self.config = config
        if offload is not None:
            read_options(config, offload)  # refuse before anything is allocated
        self._root = namespace(config)
        self._pool = BlockPool(config.device_blocks)
        caches = [RankCache(config, rank) for rank in range(config.ranks)]
        self._model = Model(config, caches)
        self._offloading = Offloading.open(config, offload, self._pool, caches, copy_engine)
        self._pool.on_evicted = self._offloading.manager.evicted
        self._stats = EngineStats()
        self._scheduler = Scheduler(config, self._pool, self._offloading.manager, self._stats)
        self._requests: dict[str, Request] = {}
        self._completions: list[Completion] = []
        self._closed = False
        self._stepped_s = time.perf_counter()

    def submit(self, request_id: str, prompt_token_ids: Sequence[int], max_new_tokens: int) -> None:
        """Queue a request. Raises RequestRefused if it can never be served; the others go on."""
        tokens = [int(token) for token in prompt_token_ids]
        self._check(request_id, tokens, max_new_tokens)
        request = Request(
            id=request_id,
            tokens=tokens,
            prompt_tokens=len(tokens),
            max_new_tokens=max_new_tokens,
            submitted_s=time.perf_counter(),
            tables=[[] for _ in self.config.groups],
        )
        extend_keys(request.keys, tokens, self.config.block_tokens, self._root)
        self._requests[request_id] = request
        self._scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request now; the next step returns what it has. False if there is none, or it is over."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.finish(request)
        self._completions.append(request.completion("aborted"))
        return True

    def step(self) -> list[Completion]:
        """Do one step and return the requests that are over."""
        if self._closed:
            raise ProtocolError("the engine is closed")
        self._stats.steps += 1
        before_s, self._stepped_s = self._stepped_s, time.perf_counter()
        self._offloading.manager.passed(self._stepped_s - before_s)
        self._scheduler.take(self._offloading.collect())
        work = self._scheduler.schedule()
        plan = self._offloading.manager.plan(idle=not work)
        self._offloading.start(plan)
        self._scheduler.slide()
        if work:
            self._compute_timed(work)
        elif not plan.wait_for:
            self._offloading.rest()
        completions, self._completions = self._completions, []
        return completions

    def _compute_timed(self, work: list[Work]) -> None:
        """Compute, and let the manager know what a token of a prompt costs."""
        began_s = time.perf_counter()
        self._compute(work)
        tokens = sum(num_tokens for _, num_tokens in work if num_tokens > 1)
        self._offloading.manager.computed(tokens, time.perf_counter() - began_s)

    def run(self) -> list[Completion]:
        """Step until the engine is idle; return the requests that are over, in the order in which they ended."""
        completions = []
        while not self.idle:
            completions += self.step()
        return completions

    def reset(self) -> None:
        """Forget all KV, on the device and on the host, as after a change of weights. Requests start again."""
        self._pool.reset()
        self._offloading.manager.reset()
        self._scheduler.restart()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do: no request, no completion to return, no copy."""
        return not (self._requests or self._completions or self._offloading.manager.busy)

    @property
    def manager(self) -> OffloadManager | None:
        """The offload manager, for its metrics; None without offloading."""
        manager = self._offloading.manager
        return manager if isinstance(manager, OffloadManager) else None

    @property
    def pool(self) -> BlockPool:
        """The device pool."""
        return self._pool

    @property
    def stats(self) -> EngineStats:
        """What the engine did so far: a copy."""
        stores = [worker.stats.store for worker in self._offloading.workers]
        loads = [worker.stats.load for worker in self._offloading.workers]
        return replace(
            self._stats,
            store_s=sum(traffic.busy_s for traffic in stores),
            load_s=sum(traffic.busy_s for traffic in loads),
            store_bytes=sum(traffic.bytes for traffic in stores),
            load_bytes=sum(traffic.bytes for traffic in loads),
            saved_bytes=sum(traffic.saved_bytes for traffic in stores + loads),
        )

    def close(self) -> None:
        """Stop all threads and give the host memory back. May be called again."""
        self._closed = True
        self._offloading.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, request_id: str, tokens: Sequence[int], max_new_tokens: int) -> None:
        if self._closed:
            raise ProtocolError("the engine is closed")
        if request_id in self._requests:
            raise RequestRefused(request_id, "a request with this id is not over yet")
        if not tokens:
            raise RequestRefused(request_id, "the prompt is empty")
        if max_new_tokens < 1:
            raise RequestRefused(request_id, f"max_new_tokens={max_new_tokens}: expected at least 1")
        vocab = self.config.model.vocab
        if not (min(tokens) >= 0 and max(tokens) < vocab):
            raise RequestRefused(request_id, f"token ids are from 0 to {vocab - 1}")
        needed, blocks = self.config.most_blocks(len(tokens) + max_new_tokens), self.config.device_blocks
        if needed > blocks:
            raise RequestRefused(request_id, f"it can need {needed} blocks, and the device has {blocks}")

    def _compute(self, work: Sequence[Work]) -> None:
        """Compute the tokens of one step, and generate one for each request that has no other left."""
        begin_s = time.perf_counter()
        chunks = [
            Chunk(request.tokens[request.computed : request.computed + num_tokens], request.computed, request.tables)
            for request, num_tokens in work
        ]
        best = self._model.forward(chunks).argmax(axis=-1).tolist()
        now_s = time.perf_counter()
        self._stats.forward_s += now_s - begin_s
        for item, token in zip(work, best, strict=True):
            self._scheduler.computed(item)
            if not item.request.remaining:
                self._append(item.request, token, now_s)

    def _append(self, request: Request, token: int, now_s: float) -> None:
        request.tokens.append(token)
        if request.first_token_s is None:
            request.first_token_s = now_s
        extend_keys(request.keys, request.tokens, self.config.block_tokens, self._root)
        if request.generated == request.max_new_tokens:
            del self._requests[request.id]
            self._scheduler.finish(request)
            self._completions.append(request.completion("length"))
