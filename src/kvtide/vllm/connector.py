"""The connector: what vLLM asks for, handed to the half that answers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from kvtide.core.share import Share
from kvtide.vllm import versions
from kvtide.vllm.at_node import IndexAtNode
from kvtide.vllm.layout import Layout, read_layout
from kvtide.vllm.log import logger, take_over_lines
from kvtide.vllm.memory_at_node import MemoryAtNode
from kvtide.vllm.node_namespace import refuse_node
from kvtide.vllm.null_sides import NullSchedulerSide, NullWorkerSide, UnboundSchedulerSide, UnregisteredWorkerSide
from kvtide.vllm.options import Options, read_options
from kvtide.vllm.packing import with_packing
from kvtide.vllm.placement import placement_of
from kvtide.vllm.prometheus import PromMetrics
from kvtide.vllm.scheduler_side import SchedulerSide
from kvtide.vllm.sharing import Sharing, gather_in_group
from kvtide.vllm.sleeping import wait_before_sleep
from kvtide.vllm.start_line import start_line
from kvtide.vllm.stats import StepStats
from kvtide.vllm.step_messages import StepMetadata
from kvtide.vllm.tiers import tiers_opener
from kvtide.vllm.worker_side import WorkerSide


class KVTideConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM has no type information here
    """KV-cache offloading to host memory and below. One instance in the scheduler's process, one in each worker's.

    Each has both halves, of which the other role's does nothing. Without prefix caching there is nothing to share, and
    neither does anything.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        take_over_lines(None if role == KVConnectorRole.SCHEDULER else vllm_config.parallel_config.rank)
        versions.warn_if_untested()
        events = vllm_config.kv_events_config
        options = read_options(
            self._kv_transfer_config.kv_connector_extra_config or {},
            events=events is not None and events.enable_kv_cache_events,
            placement=placement_of(vllm_config.parallel_config, self._kv_transfer_config.engine_id),
        )
        self._scheduler: NullSchedulerSide | SchedulerSide = NullSchedulerSide()
        self._worker: NullWorkerSide | WorkerSide = NullWorkerSide()
        source = versions.host_hit_source()
        if source is not None:
            self._cache_hit_source = source
        if not vllm_config.cache_config.enable_prefix_caching:
            logger.warning("kvtide: prefix caching is off, so nothing will be stored or loaded")
        elif role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler(options)
        else:
            self._worker = self._make_worker(options)
            wait_before_sleep(vllm_config.parallel_config.worker_cls, self)

    def _make_scheduler(self, options: Options) -> UnboundSchedulerSide:
        # A failed load costs time, not the request. vLLM reads this after the connector was made.
        self._kv_transfer_config.kv_load_failure_policy = "recompute"
        layout, options = self._read_layout(options)
        config = options.build(layout.geometry)
        logger.info(start_line(config, options, layout.replicas))
        open_node = None
        if options.node is not None:
            refuse_node(options.node, self._vllm_config)
            configs = self._vllm_config, self._kv_cache_config
            open_node = partial(IndexAtNode, options.node, *configs, layout, keys=config.slots)
        return UnboundSchedulerSide(partial(SchedulerSide, config, layout, open_node=open_node))

    def _make_worker(self, options: Options) -> UnregisteredWorkerSide:
        # The same sum as the scheduler's, so that the host tier is there from the start; what counts is its word.
        layout, options = self._read_layout(options)
        geometry = layout.geometry
        slots = options.build_unchecked(geometry).slots
        tiers = tiers_opener(options.tiers, self._vllm_config, self._kv_cache_config, geometry.block_bytes)
        parallel = self._vllm_config.parallel_config
        rank, sharers = parallel.rank, layout.replicas.sharing
        share = Share(rank % sharers, sharers)
        sharing = Sharing(share, rank % parallel.tensor_parallel_size, gather_in_group)
        node = None
        if options.node is not None:
            node = MemoryAtNode(options.node, rank, share, self._vllm_config, self._kv_cache_config)
        made = partial(WorkerSide, rank, self._kv_cache_config, options.copying, slots)
        return UnregisteredWorkerSide(partial(made, open_tiers=tiers, sharing=sharing, node=node))

    def _read_layout(self, options: Options) -> tuple[Layout, Options]:
        layout = read_layout(self._vllm_config, self._kv_cache_config)
        return with_packing(layout, options, self._kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a store that is dropped is a miss later, nothing worse."""
        return False

    # ------------------------------------------------------------------ scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Take the block pool (since 0.30)."""
        self._kv_cache_manager = kv_cache_manager
        self._scheduler = self._scheduler.bind(kv_cache_manager.block_pool, kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the block pool (before 0.30)."""
        self._scheduler = self._scheduler.bind(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """Hear of a request."""
        self._scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Say how many tokens the host has beyond those of the device."""
        return self._scheduler.match(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """Say which groups a load fills, so that vLLM need not zero them."""
        return self._scheduler.group_ids

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Hear that blocks were allocated, and how much is to be loaded into them."""
        self._scheduler.placed(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Plan a step."""
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Hear what the workers say."""
        self._scheduler.report(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Hear that a request is over (engines without the hybrid cache manager)."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Hear that a request is over. What is still to be stored is pinned, so vLLM may free its blocks now."""
        self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether an idle engine has to go on stepping."""
        return self._scheduler.busy

    def has_pending_block_frees(self) -> bool:
        """Whether waiting for copies makes room, so that nobody need be preempted."""
        return self._scheduler.frees_soon()

    def take_events(self) -> Iterable[Any]:
        """Return KV cache events."""
        return self._scheduler.take_events()

    def reset_cache(self) -> bool:
        """Empty everything. Copies that run come to nothing."""
        self._scheduler.reset()
        return True

    # ------------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the KV tensors."""
        self._worker = self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> None:
        """Hear that vLLM has started: it asks when its CUDA graphs are captured. There is nothing to tell others."""
        self._worker.started()

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Begin a step: loads, and stores of blocks that earlier steps have filled."""
        super().bind_connector_metadata(connector_metadata)
        self._worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: loads began with the step, before its forward pass, in every version."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: no request runs before its load is over, or all that is left of it is on its way (`certain`)."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are stored, all layers at once."""

    def wait_for_save(self) -> None:
        """Begin the other stores. They are not waited for: their blocks are pinned."""
        self._worker.forward_issued()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Say which loads are over."""
        self._worker.poll()
        finished, _ = self._worker.loads.take_finished()
        return None, finished or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Say which loads are over and which of them failed (since 0.30)."""
        results = versions.TransferResults()
        self._worker.poll()
        results.finished_recving, results.failed_recving = self._worker.loads.take_finished()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Say which blocks failed loads left without content (before 0.30, one KV group)."""
        unfilled = self._worker.loads.take_unfilled()
        one_group = len(self._kv_cache_config.kv_cache_groups) == 1
        return unfilled if one_group and not versions.FAILS_BY_REQUEST else set()

    def build_connector_worker_meta(self) -> Any:
        """Report to the scheduler side."""
        return self._worker.take_report()

    def clear_connector_metadata(self) -> None:
        """End a step."""
        super().clear_connector_metadata()
        self._worker.end_step()

    # ------------------------------------------------------------------ both

    def get_kv_connector_stats(self) -> StepStats | None:
        """Return numbers for vLLM's metrics."""
        return self._scheduler.take_stats() or self._worker.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StepStats:
        """Make the numbers of another process whole again."""
        return StepStats(data or {})

    build_prom_metrics = PromMetrics
    """Registers Prometheus metrics."""

    def settle(self, timeout_s: float) -> bool:
        """Wait until no copy reads or writes device memory. Returns whether that came true in time."""
        return self._worker.settle(timeout_s)

    def shutdown(self) -> None:
        """Leave no thread and no memory behind."""
        self._worker.shutdown()
        self._worker = NullWorkerSide()
        self._scheduler.shutdown()
