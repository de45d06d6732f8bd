"""What is planned for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.traces.cost import CostModel
from kvtide.traces.prices import Prices
from kvtide.traces.sampling import SAMPLE_BLOCKS
from kvtide.traces.worth import Economy
from kvtide.units import size_text

DEFAULT_POLICY = "prefix"
"""What servers have if nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What is planned for."""

    block_tokens: int
    bytes_per_token: int
    device_bytes: int
    """KV memory of all GPUs together."""
    prefix_cache: bool = True
    """Whether the device keeps KV of past requests."""
    policies: Sequence[str]
    sizes: Sequence[int] = ()
    """Host memory in bytes; empty: chosen from the trace."""
    cost: CostModel
    """Of all GPUs together."""
    gpus: int = 1
    prices: Prices
    admission: Admission = "all"
    sample_blocks: int | None = SAMPLE_BLOCKS
    """None: everything is run on the whole trace."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_tokens * self.bytes_per_token

    @property
    def served_with(self) -> str:
        """The policy of the replay: what servers have, if it is among those that were asked for."""
        return DEFAULT_POLICY if DEFAULT_POLICY in self.policies else self.policies[0]

    def with_blocks(self, block_tokens: int) -> PlanConfig:
        """Return the same for another size of blocks."""
        return self if block_tokens == self.block_tokens else replace(self, block_tokens=block_tokens)

    def economy(self) -> Economy:
        """Return what a block saves and takes."""
        return Economy(self.block_tokens, self.block_bytes, self.cost, self.gpus, self.prices)

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        least = f"at least one block, {size_text(self.block_bytes)}"
        for size in self.sizes:
            if size < self.block_bytes:
                raise ConfigError("--sizes", size_text(size), least)
        if self.device_bytes < self.block_bytes:
            raise ConfigError("--device", size_text(self.device_bytes), least)
