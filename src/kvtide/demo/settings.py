"""What the demo is told, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtide.copy.memory_left import memory_left
from kvtide.core import OffloadConfig
from kvtide.engine import EngineConfig, ModelConfig
from kvtide.errors import ConfigError
from kvtide.options import parse_count
from kvtide.units import size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Sizes of the conversations and of the memory they have to live in.

    The defaults overflow the device pool more than twice, and take some 20 s on two cores.
    """

    conversations: int = 6
    turns: int = 4
    prompt_tokens: int = 1024
    """Tokens that open a conversation: a system prompt, a document."""
    turn_tokens: int = 32
    """Tokens that the user adds in each turn after the first."""
    output_tokens: int = 16
    concurrency: int = 2
    """Conversations that are served at a time."""
    device_blocks: int = 192
    block_tokens: int = 16
    host: str | int = "256MiB"
    policy: str = "prefix"
    window: int | None = None
    """If set, every second layer attends only to this many tokens."""
    ranks: int = 1
    packing: bool = False
    """If set, KV is bf16, which packs."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("conversations", "prompt_tokens", "turn_tokens", "output_tokens", "concurrency"):
            parse_count(name, getattr(self, name))
        parse_count("turns", self.turns, minimum=2)
        parse_count("seed", self.seed, minimum=0)
        if self.window is not None:
            parse_count("window", self.window, minimum=2)
        offload = OffloadConfig.build(self.engine(self.device_blocks).geometry(), self.offload("eager"))
        self._check_that_turns_fit()
        self._check_memory(offload)

    @property
    def longest_tokens(self) -> int:
        """Tokens of a conversation at its end."""
        return self.prompt_tokens + (self.turns - 1) * self.turn_tokens + self.turns * self.output_tokens

    @property
    def unlimited_blocks(self) -> int:
        """Device blocks with which nothing is ever evicted."""
        groups = 1 if self.window is None else 2
        return self.conversations * groups * -(-self.longest_tokens // self.block_tokens)

    @property
    def total_turns(self) -> int:
        """Requests in one run."""
        return self.conversations * self.turns

    def engine(self, device_blocks: int) -> EngineConfig:
        """Return the engine with a device pool of this size."""
        return EngineConfig(
            model=ModelConfig(window_tokens=self.window, seed=self.seed),
            device_blocks=device_blocks,
            block_tokens=self.block_tokens,
            ranks=self.ranks,
            max_running=self.concurrency,
            kv_dtype="bfloat16" if self.packing else "float64",
        )

    def with_too_small_a_host(self) -> DemoSettings:
        """Return the same with host memory for three quarters of all KV."""
        geometry = self.engine(self.device_blocks).geometry()
        return replace(self, host=-(-3 * self.unlimited_blocks // 4) * geometry.slot_bytes)

    def offload(self, mode: str) -> dict[str, object]:
        """Return the options of kvtide."""
        return {"host": self.host, "mode": mode, "policy": self.policy}

    def _check_that_turns_fit(self) -> None:
        needed = self.engine(self.device_blocks).most_blocks(self.longest_tokens)
        if needed > self.device_blocks:
            expected = f"at least {needed}: a conversation has {self.longest_tokens} tokens in its last turn"
            raise ConfigError("device_blocks", self.device_blocks, expected)

    def _check_memory(self, offload: OffloadConfig) -> None:
        left = memory_left()
        if offload.host_bytes > left.nbytes:
            raise ConfigError("host", self.host, left.expected)
        unlimited = self.unlimited_blocks * offload.geometry.block_bytes * offload.geometry.ranks
        if unlimited > left.nbytes:
            expected = f"fewer: the reference run needs {size_text(unlimited)}, {left.expected}"
            raise ConfigError("conversations", self.conversations, expected)
