"""Everything that differs between the vLLM versions that kvtide works with.

| since  | what changed                                                                                              |
|--------|-----------------------------------------------------------------------------------------------------------|
| 0.24.0 | the oldest version that is tested                                                                         |
| 0.27.0 | `requires_kv_delivery`: a cache answers False                                                             |
| 0.29.0 | one backing allocation for all layers (`KVCacheTensor.layers`, `layer_stride`) instead of one tensor per  |
|        | layer (`shared_by`); asynchronous loads begin after the forward pass instead of before it, unless some    |
|        | connector loads what the step reads (`SchedulerOutput.has_sync_kv_loads`)                                 |
| 0.30.0 | failed loads are reported by request (`get_transfer_results`, `failed_recving`) instead of by block       |
|        | (`get_block_ids_with_load_errors`, one KV group only); `bind_kv_cache_manager`;                           |
|        | `has_pending_block_frees`; groups that take no part in prefix caching (`prefix_cacheable_group_ids`);     |
|        | groups whose blocks are on the host (`host_resident`)                                                     |
| 0.31.0 | `wait_for_save` is also called on steps without a forward pass; failures by block raise with several      |
|        | KV groups                                                                                                 |
| 0.32.0 | `get_loaded_kv_cache_group_ids`, `get_external_cache_hit_sources` (`CacheHitSource.HOST`)                 |

Nothing here compares version numbers: what is there is used. Numbers are compared only to warn.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import vllm.v1.core.kv_cache_utils as cache_utils
import vllm.v1.kv_cache_interface as cache_interface
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.platforms import current_platform
from vllm.version import __version__

from kvtide.vllm.log import logger
from kvtide.vllm.supported import RANGE, is_tested

TransferResults: Any = getattr(base, "KVConnectorTransferResults", None)
"""The class that carries failed loads by request id, or None where they are reported by block."""

FAILS_BY_REQUEST = TransferResults is not None
"""Whether vLLM takes failed loads by request id (0.30): then any number of KV groups can fail."""


def warn_if_untested() -> None:
    """Say once that this vLLM is outside the tested range."""
    if not is_tested(str(__version__)):
        logger.warning("kvtide is tested with vLLM %s; this is %s", RANGE, __version__)


def cacheable_group_ids(kv_cache_config: Any) -> tuple[int, ...]:
    """Return the KV groups that take part in prefix caching: before 0.30 all of them."""
    ids = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    return tuple(range(len(kv_cache_config.kv_cache_groups)) if ids is None else ids)


def is_host_resident(group: Any) -> bool:
    """Whether the blocks of a KV group are not on the device (HiSparse, 0.30), and their ids none of the pool's."""
    return bool(getattr(group, "host_resident", False))


def group_block_tokens(vllm_config: Any, kv_cache_config: Any) -> tuple[list[int], int, int]:
    """Return the tokens of one block in each group, of a scheduler's block, and of a block hash.

    With decode context parallel, a block id stands for as many blocks of tokens as there are ranks.
    """
    boundary, hash_tokens = cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if len(specs) == 1:
        return [boundary], boundary, hash_tokens
    resolve = getattr(cache_utils, "resolve_dcp_kv_block_size", None)
    if resolve is None:  # vLLM refuses several groups with context parallel here
        return [spec.block_size for spec in specs], boundary, hash_tokens
    parallel = vllm_config.parallel_config.decode_context_parallel_size
    return [resolve(spec, parallel) for spec in specs], boundary, hash_tokens


def block_bytes(kv_cache_config: Any) -> int:
    """Return the bytes of one block on one rank, all layers together. The same on scheduler and worker (F22)."""
    tensors = [tensor for tensor in kv_cache_config.kv_cache_tensors if not getattr(tensor, "host_resident", False)]
    blocks: int = kv_cache_config.num_blocks
    if hasattr(tensors[0], "layers"):  # each tensor tells the size of the whole allocation
        return int(tensors[0].size) // blocks
    if tensors[0].block_stride:  # layers packed into blocks, in one allocation
        return int(tensors[0].block_stride)
    return sum(int(tensor.size) // blocks for tensor in tensors)


def drops_last_block(vllm_config: Any) -> bool:
    """Whether speculative decoding (EAGLE, MTP) has to compute the last block of every hit again."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return False
    ask = getattr(speculative, "use_eagle_block_drop", None) or speculative.use_eagle
    return bool(ask())


def on_gpu() -> bool:
    """Whether the KV cache is in the memory of a GPU."""
    return bool(current_platform.is_cuda_alike())


def layer_specs(spec: Any) -> list[Any]:
    """Return the specs of a group's layers: one for all, or one for each layer."""
    if isinstance(spec, cache_interface.UniformTypeKVCacheSpecs):
        return list(spec.kv_cache_specs.values())
    return [spec]


def reads_before_bind(kv_cache_config: Any) -> bool:
    """Whether vLLM may read or copy a request's KV in a step before the step's metadata is bound.

    That is where compute is made to wait for the last bytes of a load, so such models must not hear of it sooner. The
    runners copy states of state-space layers to the blocks of the next boundary first thing (`preprocess_mamba`,
    `preprocess_state`), and blocks that are hit in part (copy-on-write, since 0.26, only where there are states).
    tests/vllm/test_before_bind.py goes over all that comes before, in every version.
    """
    return any(
        isinstance(spec, cache_interface.MambaSpec)
        for group in kv_cache_config.kv_cache_groups
        for spec in layer_specs(group.kv_cache_spec)
    )


def gives_up_blocks_at_the_end(kv_cache_config: Any) -> bool:
    """Whether requests keep all of their blocks as long as they run: with nothing but full attention they do."""
    return all(
        type(spec) in {cache_interface.FullAttentionSpec, cache_interface.MLAAttentionSpec}
        for group in kv_cache_config.kv_cache_groups
        for spec in layer_specs(group.kv_cache_spec)
    )


def defers_frees(pool: Any) -> bool:
    """Whether vLLM keeps the blocks of requests that are over back until no step in flight may use them.

    Its scheduler knows, which is binding `pool` right now: what it goes by is not always in the configuration of a
    connector, which may be one of several (tests/vllm/test_beside.py). The same in all versions that are tested
    (tests/vllm/test_versions.py).

    It counts a step as over when its output is there. Drafters may write KV a little longer, so a load still has to
    wait for what was issued before the last step.
    """
    scheduler = _scheduler_that_binds(pool)
    return bool(getattr(scheduler, "defer_block_free", False)) and hasattr(scheduler, "_free_request_blocks")


def others_load(pool: Any) -> bool:
    """Whether kvtide is one of several connectors of the scheduler that is binding `pool` right now, or may be."""
    connector = getattr(_scheduler_that_binds(pool), "connector", None)
    return connector is None or isinstance(connector, MultiConnector)


def loads_in_step(step: Any) -> bool | None:
    """Whether some connector loads what a step reads while it runs; None: vLLM does not say (before 0.29).

    kvtide never does.
    """
    return getattr(step, "has_sync_kv_loads", None)


def host_hit_source() -> Any:
    """Return what vLLM calls hits in host memory in its metrics (0.32), or None."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: PLC0415 (not there before 0.32)
    except ImportError:
        return None
    return CacheHitSource.HOST


def find_cache_manager(pool: Any) -> Any:
    """Return the cache manager that owns `pool`, from the scheduler that is binding it, or None.

    Needed only before 0.30, where vLLM does not hand out the manager: it knows whose blocks are in use, which a reset
    has to know; and with several KV groups there is no way to report that a load failed, so that the connector has to
    give the blocks back itself.
    """
    return getattr(_scheduler_that_binds(pool), "kv_cache_manager", None)


def _scheduler_that_binds(pool: Any) -> Any:
    """Return the scheduler that is binding `pool` right now, or None: vLLM does not hand it out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if getattr(getattr(found, "kv_cache_manager", None), "block_pool", None) is pool:
            return found
        frame = frame.f_back
    return None
