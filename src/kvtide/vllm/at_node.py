"""The scheduler's way to the index at a node, in the namespace of this engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtide.core.index.remote import RemoteIndex
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from kvtide.vllm.layout import Layout
from kvtide.vllm.log import logger
from kvtide.vllm.node_namespace import engine_name, namespace_at_node


class IndexAtNode:
    """The index, and the link to it, which is to be closed."""

    def __init__(self, path: Path, vllm_config: Any, kv_cache_config: Any, layout: Layout, *, keys: int) -> None:
        """`keys`: of about so many it is remembered that the node has them."""
        said = namespace_at_node(vllm_config, kv_cache_config, layout)
        hello = Hello(Role.SCHEDULER, engine=engine_name(vllm_config), namespace=said)
        self._link = IndexLink(
            path,
            hello,
            lambda line: logger.info("kvtide: %s", line),
            lambda line: logger.warning("kvtide: %s", line),
        )
        self._link.attach()
        self.index = RemoteIndex(self._link, layout.geometry.groups, remember_blocks=keys)

    @property
    def is_attached(self) -> bool:
        """Whether the node is there."""
        return self._link.life is not None

    def close(self) -> None:
        """Let go of the node. What this engine held there is free when its workers have let go, too."""
        self._link.close()
