"""KV-cache offloading for LLM serving: blocks go out to host memory and come back in time.

Here are the names that an engine needs to talk to the core, which is pure standard library. What moves bytes is in
`kvtide.copy` and `kvtide.worker`; a small serving engine that uses all of it is in `kvtide.engine`.
"""

from __future__ import annotations

from importlib import metadata as _metadata

from kvtide.core import (
    NULL_BLOCK,
    OPTIONS,
    BlockContent,
    ChunkedLocal,
    Copy,
    DevicePool,
    FreeBlock,
    FullAttention,
    Gauges,
    Geometry,
    Group,
    Key,
    Match,
    Metrics,
    NotLoaded,
    NotStored,
    OffloadConfig,
    OffloadManager,
    Outcome,
    Plan,
    Report,
    SlidingWindow,
    StateSpace,
)
from kvtide.errors import ConfigError, CopyError, KVTideError, ProtocolError, RequestRefused, StillCopying

try:
    __version__ = _metadata.version("kvtide")
except _metadata.PackageNotFoundError:  # a source tree that nobody has installed
    __version__ = "0+unknown"

__all__ = [
    "NULL_BLOCK",
    "OPTIONS",
    "BlockContent",
    "ChunkedLocal",
    "ConfigError",
    "Copy",
    "CopyError",
    "DevicePool",
    "FreeBlock",
    "FullAttention",
    "Gauges",
    "Geometry",
    "Group",
    "KVTideError",
    "Key",
    "Match",
    "Metrics",
    "NotLoaded",
    "NotStored",
    "OffloadConfig",
    "OffloadManager",
    "Outcome",
    "Plan",
    "ProtocolError",
    "Report",
    "RequestRefused",
    "SlidingWindow",
    "StateSpace",
    "StillCopying",
    "__version__",
]
