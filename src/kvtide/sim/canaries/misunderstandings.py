"""Canaries that misunderstand a model: what a group needs to resume is a little less, or more, than it does."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from kvtide.core.groups import ChunkedLocal, SlidingWindow, StateSpace
from kvtide.sim.canaries.base import Patches, canary


@canary("F24", "windows are taken as one token longer", "I6")
def long_window() -> Patches:
    def first_needed(self: SlidingWindow, boundary: int) -> int:
        return max(0, boundary - self.window_tokens) // self.block_tokens

    return [(SlidingWindow, "first_needed", first_needed)]


@canary("F24", "windows are taken as one token shorter", "I3", "I4", "I6")
def short_window() -> Patches:
    def first_needed(self: SlidingWindow, boundary: int) -> int:
        return max(0, boundary - self.window_tokens + 2) // self.block_tokens

    return [(SlidingWindow, "first_needed", first_needed)]


@canary("F24", "the first block of a chunk is left out", "I3", "I4", "I6")
def short_chunk() -> Patches:
    def first_needed(self: ChunkedLocal, boundary: int) -> int:
        begin = boundary // self.chunk_tokens * self.chunk_tokens // self.block_tokens
        return min(begin + 1, boundary // self.block_tokens)

    return [(ChunkedLocal, "first_needed", first_needed)]


@canary("F24", "a state is not taken as needed", "I3", "I4", "I6")
def no_state() -> Patches:
    def first_needed(self: StateSpace, boundary: int) -> int:
        return boundary // self.block_tokens

    return [(StateSpace, "first_needed", first_needed)]
