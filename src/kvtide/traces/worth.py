"""What sizes of host memory are worth in steady state: GPU time saved against the price of the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtide.traces.cost import CostModel
from kvtide.traces.prices import GIB, Prices
from kvtide.traces.steady_state import SteadyState

PAYS_FROM = 1.25
"""The next GiB is worth buying if it brings so many times what it costs: less is within what is not known."""
SIZES = tuple(GIB << power for power in range(15))
"""What is looked at if nothing else is said: 1 GiB to 16 TiB."""


@dataclass(frozen=True, slots=True)
class Economy:
    """What a block saves and takes."""

    block_tokens: int
    block_bytes: int
    cost: CostModel
    """Of all GPUs together."""
    gpus: int
    prices: Prices

    @property
    def loading_is_slower(self) -> bool:
        """Whether a token takes longer to load than to compute: then nothing that is loaded makes a turn faster."""
        return self.load_s >= self.compute_s

    @property
    def load_s(self) -> float:
        """What it takes to load a token."""
        return self.block_bytes / self.block_tokens / self.cost.load_bytes_per_s

    @property
    def compute_s(self) -> float:
        """What it takes to compute a token."""
        return 1 / self.cost.prefill_tokens_per_s

    @property
    def dollars_per_hit(self) -> float:
        """What a block is worth that need not be computed."""
        return self.block_tokens * self.compute_s * self.gpus * self.prices.gpu_second

    @property
    def pays_within_s(self) -> float:
        """A block that is used only after so long has cost more to keep than it saves."""
        per_second = self.prices.memory(self.block_bytes) / 3600
        return self.dollars_per_hit / per_second if per_second else float("inf")


@dataclass(frozen=True, slots=True)
class Worth:
    """One size in steady state."""

    host_bytes: int
    added_share: float
    """Of the blocks that prompts ask for, beyond what the device serves."""
    saved: float
    """Dollars per hour."""
    price: float
    """Dollars per hour."""

    @property
    def net(self) -> float:
        """What is left when the memory has brought what it has to. It is most where the next GiB does not any more."""
        return self.saved - PAYS_FROM * self.price


NOTHING = Worth(0, 0.0, 0.0, 0.0)


def worth(steady: SteadyState, device_blocks: float, economy: Economy, size: int) -> Worth:
    """Return what a size is worth. The host keeps copies of what the device has: it adds what is older."""
    on_device = steady.hit_share(device_blocks)
    added = max(0.0, steady.hit_share(size // economy.block_bytes) - on_device)
    saved = added * steady.uses_per_s * 3600 * economy.dollars_per_hit
    return Worth(size, added, saved, economy.prices.memory(size))


def best_size(steady: SteadyState, device_blocks: float, economy: Economy, sizes: Sequence[int]) -> Worth:
    """Return the size to buy, or `NOTHING`."""
    if economy.loading_is_slower:
        return NOTHING
    best = max((worth(steady, device_blocks, economy, size) for size in sizes), key=lambda one: one.net)
    return best if best.net > 0 else NOTHING
