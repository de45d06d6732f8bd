"""Chains that wait to be stored: a heap, so that a step costs what it takes out, not what waits."""

from __future__ import annotations

import heapq
from collections import Counter

from kvtide.core.chain import Chain
from kvtide.core.groups import Key


class Backlog:
    """Heads before tails; among those of one length, first come, first served.

    Examples:
        >>> backlog = Backlog(groups=1)
        >>> backlog.add(Chain(0, [b"tail"], b"head", end_tokens=32), attempt=1)
        >>> backlog.add(Chain(0, [b"head"], None, end_tokens=16), attempt=2)
        >>> chain, attempt = backlog.pop()
        >>> chain.keys, attempt, backlog.blocks
        ([b'head'], 2, 1)

    """

    def __init__(self, groups: int) -> None:
        self.blocks = 0
        self._heap: list[tuple[int, int, Chain, int]] = []
        """`end_tokens`, the turn among those (all differ, so that chains are not compared), chain, attempt."""
        self._keys: list[Counter[Key]] = [Counter() for _ in range(groups)]
        """How many chains wait to store a key, by group."""
        self._first_turn = self._last_turn = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, chain: Chain, attempt: int, *, first: bool = False) -> None:
        """Let a chain wait; `first`: before the others of its length, because its turn had come."""
        if first:
            self._first_turn -= 1
        else:
            self._last_turn += 1
        turn = self._first_turn if first else self._last_turn
        heapq.heappush(self._heap, (chain.end_tokens, turn, chain, attempt))
        self._keys[chain.group].update(chain.keys)
        self.blocks += len(chain)

    def pop(self) -> tuple[Chain, int]:
        """Take the next one out, with which attempt it is."""
        _, _, chain, attempt = heapq.heappop(self._heap)
        keys = self._keys[chain.group]
        for key in chain.keys:
            others = keys.pop(key) - 1
            if others:
                keys[key] = others
        self.blocks -= len(chain)
        return chain, attempt

    def holds(self, group: int, key: Key) -> bool:
        """Whether a key waits."""
        return key in self._keys[group]

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        for keys in self._keys:
            keys.clear()
        self.blocks = 0
