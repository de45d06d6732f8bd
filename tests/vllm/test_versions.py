"""Every name and signature of vLLM that the connector relies on, against the source of each version it supports.

Only the files that matter are fetched, out of the wheels of the CPU builds, and kept (see sources.py). What the oldest
and the newest version need is different only where `kvtide/vllm/versions.py` says so.
"""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.vllm.sources import source

VERSIONS = ["0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"]

BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
METRICS = "distributed/kv_transfer/kv_connector/v1/metrics.py"
FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
CACHE_UTILS = "v1/core/kv_cache_utils.py"
INTERFACE = "v1/kv_cache_interface.py"
POOL = "v1/core/block_pool.py"
SCHEDULER = "v1/core/sched/scheduler.py"
CACHE_MANAGER = "v1/core/kv_cache_manager.py"
COORDINATOR = "v1/core/kv_cache_coordinator.py"
WORKER = "v1/worker/gpu_worker.py"

# Methods of vLLM that kvtide overrides or calls: (file, class or "", function) → its arguments, without self.
SIGNATURES: dict[tuple[str, str, str], list[str]] = {
    (BASE, "KVConnectorBase_V1", "__init__"): ["vllm_config", "role", "kv_cache_config"],
    (BASE, "KVConnectorBase_V1", "bind_gpu_block_pool"): ["gpu_block_pool"],
    (BASE, "KVConnectorBase_V1", "on_new_request"): ["request"],
    (BASE, "KVConnectorBase_V1", "get_num_new_matched_tokens"): ["request", "num_computed_tokens"],
    (BASE, "KVConnectorBase_V1", "update_state_after_alloc"): ["request", "blocks", "num_external_tokens"],
    (BASE, "KVConnectorBase_V1", "build_connector_meta"): ["scheduler_output"],
    (BASE, "KVConnectorBase_V1", "update_connector_output"): ["connector_output"],
    (BASE, "KVConnectorBase_V1", "request_finished"): ["request", "block_ids"],
    (BASE, "SupportsHMA", "request_finished_all_groups"): ["request", "block_ids"],
    (BASE, "KVConnectorBase_V1", "has_pending_push_work"): [],
    (BASE, "KVConnectorBase_V1", "take_events"): [],
    (BASE, "KVConnectorBase_V1", "reset_cache"): [],
    (BASE, "KVConnectorBase_V1", "shutdown"): [],
    (BASE, "KVConnectorBase_V1", "register_kv_caches"): ["kv_caches"],
    (BASE, "KVConnectorBase_V1", "get_handshake_metadata"): [],
    (BASE, "KVConnectorBase_V1", "bind_connector_metadata"): ["connector_metadata"],
    (BASE, "KVConnectorBase_V1", "clear_connector_metadata"): [],
    (BASE, "KVConnectorBase_V1", "start_load_kv"): ["forward_context", "kwargs"],
    (BASE, "KVConnectorBase_V1", "wait_for_layer_load"): ["layer_name"],
    (BASE, "KVConnectorBase_V1", "save_kv_layer"): ["layer_name", "kv_layer", "attn_metadata", "kwargs"],
    (BASE, "KVConnectorBase_V1", "wait_for_save"): [],
    (BASE, "KVConnectorBase_V1", "get_finished"): ["finished_req_ids"],
    (BASE, "KVConnectorBase_V1", "get_block_ids_with_load_errors"): [],
    (BASE, "KVConnectorBase_V1", "build_connector_worker_meta"): [],
    (BASE, "KVConnectorBase_V1", "get_kv_connector_stats"): [],
    (BASE, "KVConnectorBase_V1", "build_kv_connector_stats"): ["data"],
    (BASE, "KVConnectorBase_V1", "build_prom_metrics"): [
        "vllm_config",
        "metric_types",
        "labelnames",
        "per_engine_labelvalues",
    ],
    (BASE, "KVConnectorWorkerMetadata", "aggregate"): ["other"],
    (METRICS, "KVConnectorStats", "aggregate"): ["other"],
    (METRICS, "KVConnectorStats", "reduce"): [],
    (METRICS, "KVConnectorStats", "is_empty"): [],
    (METRICS, "KVConnectorStats", "reset"): [],
    (METRICS, "KVConnectorPromMetrics", "observe"): ["transfer_stats_data", "engine_idx"],
    (FACTORY, "KVConnectorFactory", "register_connector"): ["name", "module_path", "class_name"],
    (CACHE_UTILS, "", "resolve_kv_cache_block_sizes"): ["kv_cache_config", "vllm_config"],
    (CACHE_UTILS, "", "make_block_hash_with_group_id"): ["block_hash", "group_id"],
    (CACHE_UTILS, "", "get_block_hash"): ["key"],
    (CACHE_UTILS, "", "get_group_id"): ["key"],
    (CACHE_UTILS, "", "maybe_convert_block_hash"): ["hash_bytes"],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "append"): ["block"],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "append_n"): ["blocks"],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "prepend_n"): ["blocks"],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "popleft"): [],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "popleft_n"): ["n"],
    (CACHE_UTILS, "FreeKVCacheBlockQueue", "get_all_free_blocks"): [],
    (POOL, "BlockPool", "touch"): ["blocks"],
    (POOL, "BlockPool", "free_blocks"): ["ordered_blocks"],
    (POOL, "BlockPool", "evict_blocks"): ["block_ids"],
    (POOL, "BlockPool", "get_new_blocks"): ["num_blocks"],
    (POOL, "BlockPool", "reset_prefix_cache"): [],
    (POOL, "BlockPool", "get_num_free_blocks"): [],
    (CACHE_MANAGER, "KVCacheManager", "free"): ["request"],
    (CACHE_MANAGER, "KVCacheManager", "reset_prefix_cache"): [],
    (WORKER, "Worker", "sleep"): ["level"],
    (POOL, "BlockHashToBlockMap", "get_one_block"): ["key"],
}

# Signatures that came later: since this version they must be there.
LATER: dict[tuple[str, str, str], tuple[str, list[str]]] = {
    (BASE, "KVConnectorBase_V1", "requires_kv_delivery"): ("0.27.0", []),
    (BASE, "KVConnectorBase_V1", "get_transfer_results"): ("0.30.0", ["finished_req_ids"]),
    (BASE, "KVConnectorBase_V1", "bind_kv_cache_manager"): ("0.30.0", ["kv_cache_manager"]),
    (BASE, "KVConnectorBase_V1", "has_pending_block_frees"): ("0.30.0", []),
    (WORKER, "Worker", "discard"): ("0.31.0", ["tags"]),
    (BASE, "KVConnectorBase_V1", "get_loaded_kv_cache_group_ids"): ("0.32.0", ["request"]),
}

# Names that must occur in a file: attributes that are read, and classes that are looked up.
NAMES: dict[str, list[str]] = {
    CACHE_UTILS: [
        "class KVCacheBlock:",
        "fake_free_list_head",
        "fake_free_list_tail",
        "num_free_blocks",
        "next_free_block",
        "prev_free_block",
        "ref_cnt",
    ],
    INTERFACE: [
        "class FullAttentionSpec",
        "class SlidingWindowSpec",
        "class ChunkedLocalAttentionSpec",
        "class MambaSpec",
        "class UniformTypeKVCacheSpecs",
        "class AttentionSpec",
        "class MLAAttentionSpec",
        "num_kv_heads: int",
        "block_stride",
        "kv_cache_groups",
        "num_blocks",
    ],
    BASE: ["self._vllm_config = ", "self._kv_transfer_config = ", "self._kv_cache_config = "],
    METRICS: ['f"{k}={v}" for k, v in', "metric_types[Histogram]"],
    "v1/metrics/prometheus.py": ["collector._name"],
    "logger.py": ['"propagate": False'],
    POOL: ["cached_block_hash_to_block", "free_block_queue", "self.blocks", "self.num_gpu_blocks"],
    COORDINATOR: ["self.single_type_managers"],
    "v1/core/single_type_kv_cache_manager.py": ["self.req_to_blocks"],
    "v1/request.py": ["num_output_placeholders", "skip_reading_prefix_cache", "block_hashes", "num_computed_tokens"],
    "v1/core/sched/output.py": [
        "preempted_req_ids",
        "scheduled_new_reqs",
        "scheduled_cached_reqs",
        "total_num_scheduled_tokens",
        "new_block_ids",
    ],
    "v1/outputs.py": ["kv_connector_worker_meta", "finished_recving", "invalid_block_ids"],
    "distributed/kv_events.py": ["class BlockStored", "class BlockRemoved", "class AllBlocksCleared", "group_idx"],
    "config/scheduler.py": ["scheduler_reserve_full_isl: bool = True"],
    "engine/arg_utils.py": ["def create_engine_config(", "load_general_plugins()", "kv_transfer_config"],
    "config/kv_transfer.py": ["kv_load_failure_policy", "kv_connector_extra_config"],
    "v1/engine/core.py": ["data_parallel_index = dp_rank", "data_parallel_rank_local = local_dp_rank", "_dp{dp_rank}"],
    "config/parallel.py": [
        "def local_world_size(",
        "data_parallel_size_local",
        "data_parallel_rank: int",
        "data_parallel_backend",
    ],
    "config/model.py": ["def get_total_num_kv_heads("],
    "distributed/parallel_state.py": ["def get_tp_group(", "self.cpu_group = ", "self.world_size = "],
    "model_executor/layers/linear.py": ["self.tp_rank // self.num_kv_head_replicas"],  # who has which KV head
    "config/compilation.py": ["static_forward_context"],
    "model_executor/layers/attention_layer_base.py": ["def get_attn_backend("],
    "version.py": ["__version__"],
}


@cache
def functions(version: str, path: str) -> dict[tuple[str, str], list[str]]:
    """Return the arguments of every function of a file, by class and name."""
    found = {}
    for node in ast.parse(source(version, path)).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, ast.FunctionDef):
                arguments = member.args
                names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                names += [each.arg for each in (arguments.vararg, arguments.kwarg) if each is not None]
                found[owner, member.name] = [name for name in names if name not in ("self", "cls")]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_connector_relies_on_is_there(version: str) -> None:
    numbers = [int(part) for part in version.split(".")]
    wanted = dict(SIGNATURES)
    for key, (since, arguments) in LATER.items():
        if numbers >= [int(part) for part in since.split(".")]:
            wanted[key] = arguments
    for (path, owner, name), arguments in wanted.items():
        assert functions(version, path).get((owner, name)) == arguments, f"{path}: {owner}.{name}"
    for path, names in NAMES.items():
        for name in names:
            assert name in source(version, path), f"{path}: {name}"


def assignments(text: str, name: str) -> set[str]:
    """Return what is assigned to a name in a file, one statement each, the name itself left out."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign) and name in {
            each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)
        }:
            found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_takes_all_or_nothing_of_an_offer(version: str) -> None:
    """Offers are whole blocks, so that what vLLM rounds down to blocks is all of them (see test_acceptance.py)."""
    text = source(version, SCHEDULER)
    assert assignments(text, "ext_tokens") <= {
        "ext_tokens, load_kv_async = self.connector.get_num_new_matched_tokens(request, num_new_local_computed_tokens)",
        "ext_tokens, load_kv_async = self.connector.get_num_new_matched_tokens(request, block_aligned_local)",
        "ext_tokens, load_kv_async = (0, False)",
        "ext_tokens -= ext_tokens % self.block_size",
    }
    assert assignments(text, "num_external_computed_tokens") == {
        "num_external_computed_tokens = 0",
        "num_external_computed_tokens = ext_tokens",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_connector_assumes_about_the_order_of_calls(version: str) -> None:
    text = source(version, SCHEDULER)
    # The failure policy is read after the connector was made, so that the connector may set it.
    assert text.index("KVConnectorFactory.create_connector(") < text.index("kv_load_failure_policy")
    # The connector hears of the workers' output before finished loads are looked at, so that it may hold one back.
    update = text[text.index("def _update_from_kv_xfer_finished") :]
    assert update.index("update_connector_output(") < update.index("finished_recving or ()")
    # The block lists that are handed out are the live ones.
    coordinator = source(version, COORDINATOR)
    assert "manager.req_to_blocks.get(request_id) or []" in coordinator


@pytest.mark.parametrize("version", VERSIONS)
def test_f20_workers_are_asked_for_a_handshake_when_graphs_are_captured(version: str) -> None:
    """So they know that vLLM has started. Before 0.27 the executor captures them when it makes the KV caches."""
    start = body(version, "v1/engine/core.py", "EngineCore", "__init__")
    made = start.index("self._initialize_kv_caches(vllm_config)")
    assert made < start.index("self.model_executor.get_kv_connector_handshake_metadata()")
    executor = body(version, "v1/executor/abstract.py", "Executor", "initialize_from_config")
    caches = body(version, "v1/engine/core.py", "EngineCore", "_initialize_kv_caches")
    assert "compile_or_warm_up_model" in executor or "compile_or_warm_up_model" in caches


def body(version: str, path: str, owner: str, name: str) -> str:
    """Return the code of a method, without its docstring and comments."""
    for node in ast.walk(ast.parse(source(version, path))):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            [method] = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name]
            return "\n".join(map(ast.unparse, method.body[bool(ast.get_docstring(method)) :]))
    raise AssertionError(f"{path} has no {owner}.{name}")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_reset_of_the_prefix_cache_comes_to_the_block_pool_and_counts_blocks_there(version: str) -> None:
    """What `kvtide/vllm/resets.py` listens to, and what it lets vLLM count."""
    assert "self.kv_cache_manager.reset_prefix_cache()" in body(version, SCHEDULER, "Scheduler", "reset_prefix_cache")
    manager = body(version, CACHE_MANAGER, "KVCacheManager", "reset_prefix_cache")
    if "self.block_pool.reset_prefix_cache()" not in manager:
        assert "self.coordinator.reset_prefix_cache()" in manager
        assert "pool.reset_prefix_cache() for pool in" in source(version, COORDINATOR)
    reset = body(version, POOL, "BlockPool", "reset_prefix_cache")
    assert reset.startswith(
        "num_used_blocks = self.num_gpu_blocks - self.get_num_free_blocks()\nif num_used_blocks != 1:"
    )
    assert reset.count("num_free_blocks") == 1
    free = body(version, POOL, "BlockPool", "get_num_free_blocks")
    assert free == "return self.free_block_queue.num_free_blocks"
    # `sleep` and `pause` clear caches by the same way.
    core = source(version, "v1/engine/core.py")
    assert "self.scheduler.reset_prefix_cache(" in core
    assert "self.kv_cache_manager.block_pool" not in core


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_leave_the_free_queue_for_somebody_else_in_one_way(version: str) -> None:
    """What `kvtide/vllm/evictions.py` listens to."""
    text = source(version, POOL)
    assert text.count(".popleft_n(") == 1
    assert "self.free_block_queue.popleft_n(num_blocks)" in body(version, POOL, "BlockPool", "get_new_blocks")
    assert text.count(".popleft()") == 1, "the null block"
    at_the_start = "self.sink_blocks = self.block_pool.free_block_queue.popleft_n("
    managers = source(version, "v1/core/single_type_kv_cache_manager.py")
    assert "popleft" not in managers.replace(at_the_start, "")


@pytest.mark.parametrize("version", VERSIONS)
def test_f7_blocks_of_requests_are_kept_back_while_a_step_in_flight_may_use_them(version: str) -> None:
    """What `versions.defers_frees` says."""
    text = ast.unparse(ast.parse(source(version, SCHEDULER)))
    assert "multiple_inflight_batches = self.vllm_config.max_concurrent_batches > 1" in text
    assert "if multiple_inflight_batches and kv_transfer_config.is_kv_consumer:\n" in text
    for name in ("_preempt_request", "_free_blocks"):
        assert "self._free_request_blocks(request)" in body(version, SCHEDULER, "Scheduler", name)
    free = body(version, SCHEDULER, "Scheduler", "_free_request_blocks")
    condition = "not self.defer_block_free or request.last_sched_seq <= self.processed_step_seq"
    if "self._request_blocks_can_be_freed(request)" in free:
        assert condition in body(version, SCHEDULER, "Scheduler", "_request_blocks_can_be_freed")
    else:
        assert condition in free
    assert "self.deferred_frees.append((self.sched_step_seq, blocks))" in free
    # The other one is of a request whose load has failed, and which no step has seen.
    assert text.count("self.kv_cache_manager.free(") == free.count("self.kv_cache_manager.free(") + 1
    assert "self.kv_cache_manager.free(" in body(version, SCHEDULER, "Scheduler", "_update_waiting_for_remote_kv")
