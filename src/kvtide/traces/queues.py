"""How long requests wait for a first token, given where the tokens of each prompt come from.

The same model as a replay's, without what decides where tokens come from, so that many sizes can be tried: requests
wait for room on the device, first come first served; loads go one after the other over the link, prefills one after
the other through the GPUs, in the order in which they can begin.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from kvtide.traces.cost import CostModel


class Work(NamedTuple):
    """One request."""

    time_s: float
    hashes: Sequence[int]
    """Of full blocks of the prompt."""
    prompt_tokens: int
    output_tokens: int
    on_device: int
    """Blocks of the prompt that the device has."""
    on_host: int
    """Blocks that are loaded besides."""


class Queues:
    """Serves requests once."""

    def __init__(self, cost: CostModel, *, device_blocks: int, block_tokens: int, bytes_per_token: int) -> None:
        self._cost = cost
        self._free = device_blocks
        self._block_tokens, self._block_bytes = block_tokens, block_tokens * bytes_per_token
        self._waiting: deque[tuple[float, Work]] = deque()
        self._held: Counter[int] = Counter()
        """How many running requests hold a block that others may share."""
        self._due: list[tuple[float, int, bool, float, Work]] = []
        """When, a number to tell equals apart, whether it is over (or loaded), when it came, and who."""
        self._happened = 0
        self._link_free_s = self._compute_free_s = self._total_s = 0.0

    def mean_ttft_s(self, works: Sequence[Work]) -> float:
        """Return the mean time to first token."""
        now_s = 0.0
        for work in works:
            now_s = max(now_s, work.time_s)
            while self._due and self._due[0][0] <= now_s:
                self._next()
            self._waiting.append((now_s, work))
            self._admit(now_s)
        while self._due:
            self._next()
        return self._total_s / max(1, len(works))

    def _next(self) -> None:
        now_s, _, over, came_s, work = heapq.heappop(self._due)
        if not over:
            self._compute(came_s, work, now_s)
            return
        for value in work.hashes:
            left = self._held[value] - 1
            if left:
                self._held[value] = left
            else:
                del self._held[value]
                self._free += 1
        self._free += self._blocks(work) - len(work.hashes)
        self._admit(now_s)

    def _admit(self, now_s: float) -> None:
        """Let requests begin for which there is room. What a running one holds and the device finds takes none."""
        held = self._held
        while self._waiting:
            came_s, work = self._waiting[0]
            shared = sum(value in held for value in work.hashes[: work.on_device])
            needed = self._blocks(work) - shared
            if needed > self._free:
                return
            self._waiting.popleft()
            self._free -= needed
            for index, value in enumerate(work.hashes):
                # A block that is held and was not found is a second copy. It is taken to be the same one: few are.
                self._free += value in held and index >= work.on_device
                held[value] += 1
            if work.on_host:
                seconds = work.on_host * self._block_bytes / self._cost.load_bytes_per_s
                self._link_free_s = max(now_s, self._link_free_s) + seconds
                self._happens(self._link_free_s, False, came_s, work)
            else:
                self._compute(came_s, work, now_s)

    def _compute(self, came_s: float, work: Work, now_s: float) -> None:
        tokens = work.prompt_tokens - (work.on_device + work.on_host) * self._block_tokens
        self._compute_free_s = max(now_s, self._compute_free_s) + tokens / self._cost.prefill_tokens_per_s
        first_s = self._compute_free_s + self._cost.overhead_s
        self._total_s += first_s - came_s
        self._happens(first_s + work.output_tokens * self._cost.decode_s_per_token, True, came_s, work)

    def _blocks(self, work: Work) -> int:
        return -(-(work.prompt_tokens + work.output_tokens) // self._block_tokens)

    def _happens(self, when_s: float, over: bool, came_s: float, work: Work) -> None:
        self._happened += 1
        heapq.heappush(self._due, (when_s, self._happened, over, came_s, work))
