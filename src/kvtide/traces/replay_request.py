"""A request while it is replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.groups import Key
from kvtide.engine.block_pool import BlockPool
from kvtide.traces.policy_run import as_keys
from kvtide.traces.record import TraceRequest

GROUP = 0


@dataclass(slots=True)
class ReplayRequest:
    """Keys, block table, and how far it is."""

    id: str
    keys: list[Key]
    """Of full blocks."""
    prompt_tokens: int
    output_tokens: int
    block_tokens: int
    arrival_s: float
    blocks: list[int] = field(default_factory=list)
    """Live: the core reads it."""
    registered_blocks: int = 0
    device_tokens: int = 0
    resume_at: int = 0
    """Tokens that need not be computed."""
    admitted_s: float = 0.0
    above_tokens: int | None = None
    """What the device and the host had when it began to search below them; None: it did not."""

    @classmethod
    def of(cls, request_id: str, request: TraceRequest, block_tokens: int, arrival_s: float) -> ReplayRequest:
        """Make one that has just arrived."""
        keys = as_keys(request.hashes[: request.prompt_tokens // block_tokens])
        return cls(request_id, keys, request.prompt_tokens, request.output_tokens, block_tokens, arrival_s)

    @property
    def blocks_needed(self) -> int:
        """Device blocks for the prompt and all that will be generated."""
        return -(-(self.prompt_tokens + self.output_tokens) // self.block_tokens)

    def leading_blocks(self, device: BlockPool) -> list[int]:
        """Return what the device still has of the prompt. One token is left to compute."""
        found: list[int] = []
        for key in self.keys[: (self.prompt_tokens - 1) // self.block_tokens]:
            block = device.find(GROUP, key)
            if block is None:
                break
            found.append(block)
        return found

    def search(self, above_tokens: int) -> None:
        """Wait for what is below, beyond so many tokens."""
        if self.above_tokens is None:
            self.above_tokens = above_tokens

    @property
    def below_tokens(self) -> int:
        """Tokens of what is loaded that came up from below for this request."""
        if self.above_tokens is None:
            return 0
        return max(0, self.resume_at - max(self.above_tokens, self.device_tokens))

    def admit(self, blocks: list[int], device_tokens: int, resume_at: int, now_s: float) -> None:
        """Take the blocks that were allocated."""
        self.blocks += blocks
        self.device_tokens = device_tokens
        self.registered_blocks = device_tokens // self.block_tokens
        self.resume_at = resume_at
        self.admitted_s = now_s

    def register(self, device: BlockPool, end: int) -> None:
        """Make blocks up to `end`, which are loaded or computed now, findable on the device."""
        for index in range(self.registered_blocks, end):
            parent = self.keys[index - 1] if index else None
            device.register(self.blocks[index], GROUP, self.keys[index], parent, (index + 1) * self.block_tokens)
        self.registered_blocks = max(self.registered_blocks, end)
