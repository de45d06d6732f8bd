"""Hits of a policy from a part of the trace: a share of the conversations in the same share of the memory.

Whole conversations are drawn, because a prefix without its beginning says nothing. What nearly everybody begins with
cannot be drawn: such blocks are in every sample, and get their room on top.

A sample may have more or fewer conversations that come back than the whole. LRU is known for both, so what is
estimated is only how much better or worse a policy is than LRU.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.policy_run import as_keys, run_policy

SAMPLES = 3
"""Disjoint samples: their difference tells the error."""
COMMON_SHARE = 0.005
"""A block that more than this share of the prompts have is common to all samples."""
SAMPLE_BLOCKS = 60_000
"""Blocks of a sample. Fewer, and errors grow beyond a point."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share of blocks that hit, and its standard error (0: nothing was left out)."""

    hit_ratio: float
    error: float


class SampledTrace:
    """The prompts of a trace, in parts that do not share conversations."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        sample_blocks: int = SAMPLE_BLOCKS,
        on_device: Sequence[int] | None = None,
    ) -> None:
        """`on_device` is how many of each prompt's first blocks the device has (none): these do not count as hits."""
        there = on_device if on_device is not None else [0] * len(prompts)
        blocks = sum(map(len, prompts))
        self.parts = max(1, blocks // sample_blocks)
        if self.parts < SAMPLES:
            self.parts = 1
        uses = Counter(value for prompt in prompts for value in prompt)
        often = max(2, COMMON_SHARE * len(prompts))
        self._common = {value for value, count in uses.items() if count > often}
        self._samples = [
            _Sample([both for both in zip(prompts, there, strict=True) if self._part(both[0]) == part])
            for part in range(min(self.parts, SAMPLES))
        ]

    def estimate(self, policy: str, slots: int, lru_ratio: float, *, selective: bool = False) -> Estimate:
        """Run a policy on the samples; `lru_ratio` is what LRU hits in the whole trace.

        `selective`: blocks are admitted when they are asked for a second time. (LRU still is without.)
        """
        if self.parts == 1:
            return Estimate(self._samples[0].hit_ratio(policy, slots, selective=selective), 0.0)
        common = min(len(self._common), slots)
        scaled = max(1, round(common + (slots - common) / self.parts))
        gains = [
            sample.hit_ratio(policy, scaled, selective=selective) - sample.lru_ratio(scaled) for sample in self._samples
        ]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        return Estimate(max(0.0, lru_ratio + statistics.mean(gains)), error)

    def _part(self, prompt: Sequence[int]) -> int:
        """Return the part that a prompt belongs to, by the first block that is its conversation's own."""
        if self.parts == 1:
            return 0
        own = next((value for value in prompt if value not in self._common), 0)
        digest = blake2b(repr(own).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.parts


class _Sample:
    """A part of the prompts, with its LRU curve."""

    def __init__(self, prompts: Sequence[tuple[Sequence[int], int]]) -> None:
        self._prompts = [as_keys(prompt) for prompt, _ in prompts]
        self._on_device = [there for _, there in prompts]
        self._blocks = max(1, sum(map(len, self._prompts)))
        self._lru = LruCurve()
        for prompt, there in prompts:
            self._lru.add(prompt, there)

    def hit_ratio(self, policy: str, slots: int, *, selective: bool) -> float:
        run = run_policy(policy, self._prompts, slots, admission=selective, on_device=self._on_device)
        return run.hit_ratio

    def lru_ratio(self, slots: int) -> float:
        return self._lru.hits(slots) / self._blocks
