"""What an engine says of itself to a node: who has said the same shares blocks with it, and nobody else (F23)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.version import __version__

from kvtide.copy.packing import NAMESPACE_PART, whole_tiles_bytes
from kvtide.node.described_groups import described
from kvtide.node.hello import NAME_CHARS_MAX
from kvtide.vllm.layout import Layout
from kvtide.vllm.node_option import refuse_ranks_elsewhere
from kvtide.vllm.replicas import elsewhere
from kvtide.vllm.settings import shortened
from kvtide.vllm.tiers import (
    TEXT_CHARS_MAX,
    asked_backend,
    backends_of,
    namespace_of,
    refuse_unstable_keys,
)

Description = Mapping[str, object]


def refuse_node(path: Path, vllm_config: Any) -> None:
    """Refuse a node where the next process computes other keys, or where a rank cannot have its memory."""
    refuse_ranks_elsewhere(path, elsewhere(vllm_config.parallel_config))
    refuse_unstable_keys("node", str(path), vllm_config)


def engine_name(vllm_config: Any) -> str:
    """Return what an engine is called at the node: the same in all of its processes."""
    served = vllm_config.model_config.served_model_name
    model = served[0] if isinstance(served, list) else served or vllm_config.model_config.model
    said = f"{str(model).rstrip('/').rpartition('/')[2]} {vllm_config.kv_transfer_config.engine_id}"
    return "".join(filter(str.isprintable, said))[-NAME_CHARS_MAX:]


def namespace_at_node(vllm_config: Any, kv_cache_config: Any, layout: Layout) -> Description:
    """Return all that the bytes of a block depend on, as far as a scheduler knows it: the same in all engines alike.

    What it knows of attention backends depends on whether its worker is in the same process, so only what was asked
    for is in it. Workers say the rest.
    """
    geometry = layout.geometry
    namespace = namespace_of(vllm_config, kv_cache_config, geometry.block_bytes, "")
    packed = geometry.host_block_bytes is not None
    if packed:
        namespace = namespace.with_setting(NAMESPACE_PART)
    manifest = namespace.manifest().items()
    parts = geometry.parts or geometry.ranks
    slot_bytes = whole_tiles_bytes([geometry.block_bytes]) if packed else geometry.block_bytes
    said = {name: value for name, value in manifest if name not in ("layout", "rank", "block_bytes")}
    return {
        **said,
        "layers": said["groups"],
        "groups": described(geometry.groups),
        "attention": f"vllm {__version__}, {asked_backend(vllm_config)}",
        "parts": [slot_bytes] * parts,
        **({"rows": [geometry.block_bytes] * parts} if packed else {}),
    }


def known_by_worker(vllm_config: Any, kv_cache_config: Any, block_bytes: int, layout: str) -> Description:
    """Return what the bytes depend on and only a worker knows, as it has the tensors (`kv_tensors.layout_of`)."""
    return {
        "block_bytes": block_bytes,
        "layout": shortened(layout, TEXT_CHARS_MAX),
        "attention": shortened(backends_of(vllm_config, kv_cache_config), TEXT_CHARS_MAX),
    }
