"""Canaries that misunderstand a model: what a group needs to resume is a little less, or more, than it does."""

from __future__ import annotations

from kvtide.core.groups import ChunkedLocal, SlidingWindow, StateSpace
from kvtide.sim.canaries.base import Canary, Patches, caught_by


def _short_window() -> Patches:
    def first_needed(self: SlidingWindow, boundary: int) -> int:
        return max(0, boundary - self.window_tokens + 2) // self.block_tokens

    return [(SlidingWindow, "first_needed", first_needed)]


def _short_chunk() -> Patches:
    def first_needed(self: ChunkedLocal, boundary: int) -> int:
        begin = boundary // self.chunk_tokens * self.chunk_tokens // self.block_tokens
        return min(begin + 1, boundary // self.block_tokens)

    return [(ChunkedLocal, "first_needed", first_needed)]


def _state_inside_a_block() -> Patches:
    def first_needed(self: StateSpace, boundary: int) -> int:
        return boundary // self.block_tokens

    return [(StateSpace, "first_needed", first_needed)]


def _long_window() -> Patches:
    def first_needed(self: SlidingWindow, boundary: int) -> int:
        return max(0, boundary - self.window_tokens) // self.block_tokens

    return [(SlidingWindow, "first_needed", first_needed)]


MISUNDERSTANDINGS = (
    Canary("F24", "long-window", "windows are taken as one token longer", _long_window, caught_by("I6")),
    Canary("F24", "short-window", "windows are taken as one token shorter", _short_window, caught_by("I3", "I4", "I6")),
    Canary("F24", "short-chunk", "the first block of a chunk is left out", _short_chunk, caught_by("I3", "I4", "I6")),
    Canary("F24", "no-state", "a state is not taken as needed", _state_inside_a_block, caught_by("I3", "I4", "I6")),
)
