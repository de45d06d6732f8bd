"""A small, real serving engine on numpy: for demos, tests and benchmarks, and as an example of an integration.

It uses the core as any other engine would. `engine.Engine.step` is one step of it; `scheduler` is where requests
meet the offload manager; `offloading` is where workers are made; `block_pool` is a device pool.
"""

from __future__ import annotations

from kvtide.engine.block_pool import BlockPool
from kvtide.engine.config import EngineConfig, ModelConfig
from kvtide.engine.engine import Engine
from kvtide.engine.offloading import CopyEngineFactory
from kvtide.engine.request import Completion
from kvtide.engine.stats import EngineStats

__all__ = [
    "BlockPool",
    "Completion",
    "CopyEngineFactory",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "ModelConfig",
]
