"""A rank's way to host memory that a node keeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtide.copy import CopyEngine, LivesCopyEngine
from kvtide.core.share import Share
from kvtide.node.hello import Hello, Role
from kvtide.node.memory import NodeMemory
from kvtide.vllm.kv_tensors import Copier
from kvtide.vllm.log import logger
from kvtide.vllm.node_namespace import engine_name, known_by_worker


@dataclass(frozen=True, slots=True)
class MemoryAtNode:
    """The memory of a rank's part of each block, whenever the node is there."""

    path: Path
    rank: int
    share: Share
    """Ranks that hold the same bytes, which follow one another, have one part: each stores its share."""
    vllm_config: Any
    kv_cache_config: Any

    def open(self, copier: Copier, layout: str) -> CopyEngine:
        """Return what copies between a rank's blocks and that memory. `layout`: what is where in a slot."""
        hello = Hello(
            Role.WORKER,
            engine=engine_name(self.vllm_config),
            rank=self.rank,
            part=self.rank // self.share.count,
            numa_node=copier.numa_node,
            namespace=known_by_worker(self.vllm_config, self.kv_cache_config, copier.slot_bytes, layout),
        )
        memory = NodeMemory(self.path, hello, self._say, share=self.share)
        return LivesCopyEngine(memory, copier.shared_engine, self._say)

    def _say(self, line: str) -> None:
        logger.warning("kvtide: %s", line)
