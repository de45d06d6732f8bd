"""What serves: a model on GPUs, with where each number about it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.errors import ConfigError
from kvtide.traces.cost import CostModel
from kvtide.traces.gpus import Gpu
from kvtide.traces.measured import Measured
from kvtide.traces.model import Model
from kvtide.traces.rates import Rates, Sourced
from kvtide.units import size_text


@dataclass(frozen=True, slots=True)
class Machine:
    """What serves: a model on GPUs."""

    model: Model
    gpu: Gpu
    gpus: int
    rates: Rates
    """Of all GPUs together."""
    device: Sourced
    """Bytes of KV on all GPUs together."""
    prefix_cache: bool
    """Whether the device keeps KV of past requests."""

    bytes_per_token: Sourced
    """Of KV."""
    measured: Measured | None = None
    """What was measured here, if anything was."""
    packing: float = 1.0
    """How many times as much KV there is in the same memory, on the host and below, and on the way there."""

    @property
    def host_bytes_per_token(self) -> int:
        """Bytes of KV on the host."""
        return round(self.model.bytes_per_token / self.packing)

    @property
    def cost(self) -> CostModel:
        """The rates as plain numbers."""
        return self.rates.cost()

    @property
    def device_tokens(self) -> int:
        """How many tokens' KV the device has room for: it is not packed there."""
        return int(self.device.value) // self.model.bytes_per_token

    def device_blocks(self, block_tokens: int) -> int:
        """Return how many blocks the device has."""
        blocks = self.device_tokens // block_tokens
        if blocks < 1:
            least = f"at least one block, {size_text(self.model.bytes_per_token * block_tokens)}"
            raise ConfigError("--device", size_text(self.device.value), least)
        return blocks
