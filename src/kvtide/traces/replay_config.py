"""What serves the trace in a replay."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.core import FullAttention, Geometry, OffloadConfig
from kvtide.core.config import Admission, Mode
from kvtide.traces.cost import CostModel
from kvtide.traces.replay_below import BelowModel, below_config

NEVER_TOKENS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """What serves the trace."""

    block_tokens: int
    bytes_per_token: int
    device_blocks: int
    host_bytes: int
    """0: there is no host memory for KV."""
    policy: str
    mode: Mode
    cost: CostModel
    admission: Admission = "all"
    below: tuple[BelowModel, ...] = ()
    """What lies below host memory, nearest first."""
    step_tokens: int = 2048
    """What the engine computes in one step. In lazy mode the core keeps blocks for two steps clean."""
    prefix_cache: bool = True
    """Whether the device keeps KV of past requests."""
    servers: int = 1
    """Servers that take turns with the requests, each with all of this."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_tokens * self.bytes_per_token

    def offload(self) -> OffloadConfig:
        """Return the configuration of the core."""
        geometry = Geometry(
            groups=(FullAttention(self.block_tokens),),
            block_bytes=self.block_bytes,
            device_blocks=self.device_blocks,
            step_tokens=self.step_tokens,
        )
        options: dict[str, object] = {
            "host": self.host_bytes or self.block_bytes,
            "policy": self.policy,
            "mode": self.mode,
            "admission": self.admission,
        }
        if not self.host_bytes:
            # The core has one block at least. From it nothing is loaded, and in eager mode nothing is stored into it: a
            # server tells the core of nothing that was computed then.
            options |= {"min_load_tokens": NEVER_TOKENS, "mode": "eager"}
        return OffloadConfig.build(geometry, options, below_config(self.below))
