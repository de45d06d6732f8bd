"""Small traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from kvtide.traces.record import TraceRequest


def request(time_s: float, hashes: Sequence[int], block_tokens: int = 4, output_tokens: int = 2) -> TraceRequest:
    """A prompt of full blocks and one more token."""
    return TraceRequest(
        time_s, (*hashes, -1 - hash(tuple(hashes)) % 999_983), len(hashes) * block_tokens + 1, output_tokens
    )


def mooncake_line(timestamp: object = 0, tokens: object = 600, hashes: object = (1, 2), output: object = 5) -> str:
    record = {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": hashes}
    return json.dumps(record)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Prompts that share beginnings: each continues a part of an earlier one, or begins anew."""
    made: list[tuple[int, ...]] = []
    fresh = iter(range(10_000))
    for _ in range(draw(st.integers(1, 25))):
        begin: tuple[int, ...] = ()
        goes_on: bool = draw(st.booleans())
        if made and goes_on:
            earlier = made[draw(st.integers(0, len(made) - 1))]
            begin = earlier[: draw(st.integers(0, len(earlier)))]
        added = draw(st.integers(0 if begin else 1, 6))
        made.append(begin + tuple(next(fresh) for _ in range(added)))
    return made
