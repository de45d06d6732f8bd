"""The hits of LRU at every size of memory, in one pass over a trace.

A block hits in a memory of `n` blocks if fewer than `n` others were used since its last use: its *reuse distance*. A
prefix hits only as far as all of it does, so what counts is the largest distance from its beginning on.

Blocks are used from the last to the first of a prompt, so that of one prompt the beginning is the most recent. What
the last prompt that used a block still holds of its own is therefore one stretch, and distances can be counted prompt
by prompt: with a tree over prompts (Fenwick), at O(log n) for each stretch instead of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


class LruCurve:
    """Hits by reuse distance."""

    def __init__(self) -> None:
        self._holder: dict[int, int] = {}
        """The last prompt that used each block."""
        self._begin: list[int] = []
        """Where in each prompt the blocks begin that no later prompt has used."""
        self._tree: list[int] = [0]
        """Fenwick tree over prompts: how many blocks each still holds."""
        self._hits_at: dict[int, int] = {}
        """Blocks that hit from this many blocks of memory on."""

    @property
    def unique_blocks(self) -> int:
        """Different blocks seen."""
        return len(self._holder)

    def add(self, hashes: Sequence[int], on_device: int = 0) -> None:
        """Count a prompt, whose blocks are there at once. The first ones, which the device has, do not count."""
        self.look(hashes, on_device)
        self.use(hashes)

    def look(self, hashes: Sequence[int], on_device: int = 0) -> list[tuple[int, int]]:
        """Count what a prompt finds, but for its first blocks, which the device has.

        Returns how many blocks of memory its next blocks need, and how many blocks hit from there on.
        """
        needed = newer = 0
        steps: list[tuple[int, int]] = []
        last_holder = None
        for depth, value in enumerate(hashes):
            holder = self._holder.get(value)
            if holder is None:
                break
            if holder != last_holder:
                last_holder = holder
                newer = self._held_after(holder)
            needed = max(needed, newer + depth - self._begin[holder] + 1)
            if depth < on_device:
                continue
            self._hits_at[needed] = self._hits_at.get(needed, 0) + 1
            if steps and steps[-1][0] == needed:
                steps[-1] = (needed, steps[-1][1] + 1)
            else:
                steps.append((needed, 1))
        return steps

    def use(self, hashes: Sequence[int]) -> None:
        """Let a new prompt hold its blocks."""
        prompt = len(self._begin)
        self._begin.append(0)
        self._append(0)
        lost: dict[int, int] = {}
        for depth, value in enumerate(hashes):
            holder = self._holder.get(value)
            if holder is not None:
                lost[holder] = lost.get(holder, 0) + 1
                self._begin[holder] = depth + 1
            self._holder[value] = prompt
        for holder, blocks in lost.items():
            self._change(holder, -blocks)
        self._change(prompt, len(hashes))

    def curve(self) -> tuple[list[int], list[int]]:
        """Return sizes in blocks, ascending, and how many blocks hit with each."""
        sizes = sorted(self._hits_at)
        return sizes, list(accumulate(self._hits_at[size] for size in sizes))

    def hits(self, blocks: int) -> int:
        """Return how many blocks hit with a memory of so many blocks."""
        return sum(hits for size, hits in self._hits_at.items() if size <= blocks)

    # ------------------------------------------------------------------ Fenwick tree

    def _append(self, value: int) -> None:
        """Add a prompt at the end: its node sums up the nodes of its range."""
        position = len(self._tree)
        step = 1
        while step < position & -position:
            value += self._tree[position - step]
            step <<= 1
        self._tree.append(value)

    def _change(self, prompt: int, blocks: int) -> None:
        position, end = prompt + 1, len(self._tree)
        while position < end:
            self._tree[position] += blocks
            position += position & -position

    def _held_after(self, prompt: int) -> int:
        """Return how many blocks the prompts after this one hold: all of them, less those up to it."""
        held = len(self._holder)
        position = prompt + 1
        while position:
            held -= self._tree[position]
            position &= position - 1
        return held
