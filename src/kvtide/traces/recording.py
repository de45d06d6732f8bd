"""A trace as a plan needs it: in memory, in not too many blocks, without what the device cannot serve at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvtide.traces.errors import TraceError
from kvtide.traces.record import TraceRequest
from kvtide.traces.reuse_times import Visit

BLOCKS_MAX = 1_000_000
"""Of all prompts together. With more, several blocks are taken as one: planning is to take seconds."""
COARSE_TOKENS_MAX = 512
"""Blocks do not become larger than that: a prefix counts as far as whole blocks of it are there."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests that are served, in the order in which they came."""

    requests: list[TraceRequest]
    block_tokens: int
    too_large: int
    """Requests that were left out: they do not fit into the device."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(request.prompt_tokens for request in self.requests)

    def visits(self) -> list[Visit]:
        """Return times and full blocks."""
        return [
            Visit(request.time_s, request.hashes[: request.prompt_tokens // self.block_tokens])
            for request in self.requests
        ]


def make_recording(
    requests: Iterable[TraceRequest], block_tokens: int, device_tokens: int, *, exact: bool = False
) -> Recording:
    """Take a trace, for a device with room for so many tokens. `exact`: in the trace's own blocks, however many."""
    kept = list(requests)
    if not any(request.prompt_tokens >= block_tokens for request in kept):
        raise TraceError(f"no prompt has a full block of {block_tokens} tokens: there is nothing to cache")
    blocks = sum(request.prompt_tokens // block_tokens for request in kept)
    joined = 1
    while not exact and blocks > BLOCKS_MAX * joined and 2 * joined * block_tokens <= COARSE_TOKENS_MAX:
        joined *= 2
    coarse = block_tokens * joined
    fitting = [one for one in kept if _blocks(one, coarse) <= device_tokens // coarse]
    if not fitting:
        raise TraceError(f"no request of the trace fits into the device, which has room for {device_tokens:,} tokens")
    return Recording([_joined(one, block_tokens, joined) for one in fitting], coarse, len(kept) - len(fitting))


def _blocks(request: TraceRequest, block_tokens: int) -> int:
    return -(-(request.prompt_tokens + request.output_tokens) // block_tokens)


def _joined(request: TraceRequest, block_tokens: int, joined: int) -> TraceRequest:
    """Return a request in larger blocks: the hash of the last of several stands for all of them."""
    if joined == 1:
        return request
    full = request.hashes[: request.prompt_tokens // block_tokens]
    return replace(request, hashes=full[joined - 1 :: joined])
