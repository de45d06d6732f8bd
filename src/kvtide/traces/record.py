"""One request of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.traces.errors import MalformedLine


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """When a request came, what its prompt shares with others, and how long it is.

    `hashes[i]` stands for block `i` of the prompt and everything before it. There is one for each block, and the last
    block may be only partly filled: its hash then stands for what is there.
    """

    time_s: float
    hashes: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    session: str | None = None


def checked(request: TraceRequest, block_tokens: int) -> TraceRequest:
    """Return the request if it makes sense."""
    if not 0 <= request.time_s < float("inf"):
        raise MalformedLine(f"time {request.time_s!r}: expected seconds since the beginning, 0 or more", "bad time")
    if request.prompt_tokens < 1:
        raise MalformedLine(f"prompt of {request.prompt_tokens} tokens: expected at least one", "no prompt")
    if request.output_tokens < 0:
        raise MalformedLine(f"output of {request.output_tokens} tokens: expected 0 or more", "bad length of output")
    blocks = -(-request.prompt_tokens // block_tokens)
    if len(request.hashes) not in (blocks, request.prompt_tokens // block_tokens):
        raise MalformedLine(
            f"{len(request.hashes)} hashes for {request.prompt_tokens} tokens: "
            f"expected {blocks}, one for each {block_tokens} tokens",
            f"hashes that do not stand for {block_tokens} tokens each",
        )
    return request
