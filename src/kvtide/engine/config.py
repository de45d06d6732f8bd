"""What the embedded engine can be told, checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from kvtide.core.config import Geometry
from kvtide.core.groups import FullAttention, Group, SlidingWindow
from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_count

KvDtype = Literal["float64", "bfloat16"]
_VALUE_BYTES: dict[KvDtype, int] = {"float64": 8, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer whose weights come from a seed."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    mlp: int = 512
    vocab: int = 512
    window_tokens: int | None = None
    """If set, every second layer attends only to this many tokens, the token itself among them."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("layers", "hidden", "heads", "kv_heads", "mlp"):
            parse_count(name, getattr(self, name))
        parse_count("vocab", self.vocab, minimum=2)
        parse_count("head_dim", self.head_dim, minimum=2)
        parse_count("seed", self.seed, minimum=0)
        if self.head_dim % 2:
            raise ConfigError("head_dim", self.head_dim, "an even number: positions rotate pairs of values")
        if self.heads % self.kv_heads:
            raise ConfigError("heads", self.heads, f"a multiple of kv_heads={self.kv_heads}")
        if self.window_tokens is not None:
            parse_count("window_tokens", self.window_tokens, minimum=2)
            if self.layers % 2:
                raise ConfigError("layers", self.layers, "an even number when every second layer has a window")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """A model and the memory and time it is given."""

    model: ModelConfig
    device_blocks: int
    """Blocks of the device pool, shared by all groups."""
    block_tokens: int = 16
    ranks: int = 1
    """Workers that share the KV heads evenly."""
    step_tokens: int = 256
    """Most tokens computed in one step."""
    max_running: int = 16
    """Most requests that hold blocks at a time."""
    kv_dtype: KvDtype = "float64"
    """How KV is kept. Weights and activations are float64 (see `kvtide.engine.model`)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("device_blocks", "block_tokens", "ranks", "step_tokens", "max_running"):
            parse_count(name, getattr(self, name))
        parse_choice("kv_dtype", self.kv_dtype, get_args(KvDtype))
        if self.model.kv_heads % self.ranks:
            raise ConfigError("ranks", self.ranks, f"a divisor of kv_heads={self.model.kv_heads}")
        self.geometry()

    @property
    def groups(self) -> tuple[Group, ...]:
        """Attention groups: full attention, and the layers with a window if there are any."""
        full = FullAttention(self.block_tokens)
        if self.model.window_tokens is None:
            return (full,)
        return (full, SlidingWindow(self.block_tokens, self.model.window_tokens))

    @property
    def layers_per_group(self) -> int:
        """Layers whose KV one block holds: the same in every group, so that blocks have one size."""
        return self.model.layers // len(self.groups)

    @property
    def fragment_bytes(self) -> int:
        """Bytes of a block in one layer on one rank."""
        heads = self.model.kv_heads // self.ranks
        return 2 * self.block_tokens * heads * self.model.head_dim * _VALUE_BYTES[self.kv_dtype]

    def geometry(self) -> Geometry:
        """Return what kvtide has to know about this engine's KV cache."""
        return Geometry(
            groups=self.groups,
            block_bytes=self.layers_per_group * self.fragment_bytes,
            device_blocks=self.device_blocks,
            ranks=self.ranks,
            step_tokens=self.step_tokens,
        )

    def most_blocks(self, num_tokens: int) -> int:
        """Return the most device blocks that a request of `num_tokens` can hold at a time, over all groups."""
        total = -(-num_tokens // self.block_tokens)
        blocks = total
        if self.model.window_tokens is not None:
            # The window before the step, the step's own tokens, and one block because neither is aligned.
            span = self.model.window_tokens - 1 + self.step_tokens
            blocks += min(total, -(-span // self.block_tokens) + 1)
        return blocks
