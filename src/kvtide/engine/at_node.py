"""Host blocks of the embedded engine at a node: what it says of itself there, and its two halves of the way."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

from kvtide.copy import CopyEngine, HostArena, LivesCopyEngine
from kvtide.core.index.remote import RemoteIndex
from kvtide.engine.config import EngineConfig, ModelConfig
from kvtide.engine.keys import tier_namespace
from kvtide.node.described_groups import described
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from kvtide.node.memory import NodeMemory
from kvtide.node.option import refused_beside_node
from kvtide.node.socket_path import read_node_path

_LOG = logging.getLogger(__name__)

REST_S = 0.001
"""So long a step without anything to compute waits for the node, or lets it have the processor."""


def read_node(options: Mapping[str, object]) -> tuple[Path | None, dict[str, object]]:
    """Return the socket of a node, if there is to be one, and the other options. Raises `ConfigError`."""
    rest = dict(options)
    value = rest.pop("node", None)
    if value is None:
        return None, rest
    for refused in refused_beside_node(options):
        raise refused
    return read_node_path("node", value), rest


class AtNode:
    """One engine's way to a node, which need not be there: the scheduler's half, and a copy engine for each rank."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self._path = path
        self._config = config
        self._name = f"embedded {secrets.token_hex(4)}"
        hello = Hello(Role.SCHEDULER, engine=self._name, namespace=_namespace(config))
        self._link = IndexLink(path, hello, _LOG.info, _LOG.warning)

    def index(self, remember_blocks: int) -> RemoteIndex:
        """Return the index of the engine. Waits for a node that listens, a moment."""
        self._link.attach()
        return RemoteIndex(self._link, self._config.groups, remember_blocks=remember_blocks)

    def copy_engine(self, rank: int, make: Callable[[HostArena], CopyEngine]) -> CopyEngine:
        """Return what copies to and from the node's memory, whenever there is any."""
        known = {"block_bytes": self._config.geometry().block_bytes}
        hello = Hello(Role.WORKER, engine=self._name, namespace=known, rank=rank, part=rank)
        return LivesCopyEngine(NodeMemory(self._path, hello, _LOG.warning), make, _LOG.warning)

    def rest(self) -> None:
        """Wait a moment for the node: there is nothing to compute."""
        self._link.wait(REST_S)

    def close(self) -> None:
        """Let go of the node, after the copy engines were closed."""
        self._link.close()


def _namespace(config: EngineConfig) -> dict[str, object]:
    """Return all that the bytes of a block depend on."""
    said = tier_namespace(config).manifest()
    parts = [config.geometry().block_bytes] * config.ranks
    named = {"model": _model_name(config.model), "config": said["model"]}
    return {**said, **named, "layers": said["groups"], "groups": described(config.groups), "parts": parts}


def _model_name(model: ModelConfig) -> str:
    """Return a name for people, who see it at the node and may give it a share: another one for other weights."""
    return f"embedded-{blake2b(repr(model).encode(), digest_size=4).hexdigest()}"
