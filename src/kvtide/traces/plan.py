"""Planning: hit ratio and time to first token against the size of host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.traces.cost import CostModel
from kvtide.traces.errors import TraceError
from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.record import TraceRequest
from kvtide.traces.sampling import SAMPLE_BLOCKS, Estimate, SampledTrace

SIZES = 8
"""Sizes that are tried if none are given: each twice the one before, up to where everything fits."""
EXACT = "lru"
"""The policy whose whole curve comes from one pass, if all blocks are admitted."""
OnPoint = Callable[[int, int], None]
"""Told how many points are done, of how many."""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one size."""

    host_bytes: int
    hit_ratio: float
    """Share of the prompt tokens that are loaded instead of computed."""
    error: float
    """Standard error of that."""
    ttft_s: float
    """Mean time to first token, without queues."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Curves by policy."""

    requests: int
    prompt_tokens: int
    unique_bytes: int
    curves: dict[str, list[Point]]
    lru_curve: list[tuple[int, float]]
    """LRU at every size where something changes: bytes and hit ratio. Empty if not all blocks are admitted."""
    ttft_without_s: float
    """Mean time to first token without any cache."""

    @property
    def best_policy(self) -> str:
        """The policy with the most hits over all sizes; the simplest of equals, in the order they were named."""
        return max(self.curves, key=lambda policy: round(sum(point.hit_ratio for point in self.curves[policy]), 3))

    @property
    def knee(self) -> Point:
        """Where more memory stops paying, for the best policy."""
        return knee(self.curves[self.best_policy])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What is planned for."""

    block_tokens: int
    bytes_per_token: int
    policies: Sequence[str]
    sizes: Sequence[int] = ()
    """Host memory in bytes; empty: chosen from the trace."""
    cost: CostModel
    admission: Admission = "all"
    sample_blocks: int = SAMPLE_BLOCKS

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.block_tokens * self.bytes_per_token

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for size in self.sizes:
            if size < self.block_bytes:
                raise ConfigError("--sizes", size, f"at least one block, {self.block_bytes} bytes")


def make_plan(requests: Iterable[TraceRequest], config: PlanConfig, on_point: OnPoint | None = None) -> PlanResult:
    """Read a trace once and run the policies on it."""
    prompts, prompt_tokens = [], 0
    curve = LruCurve()
    for request in requests:
        full = request.hashes[: request.prompt_tokens // config.block_tokens]
        prompts.append(full)
        prompt_tokens += request.prompt_tokens
        curve.add(full)
    blocks = sum(map(len, prompts))
    if not blocks:
        raise TraceError(f"no prompt has a full block of {config.block_tokens} tokens: there is nothing to cache")
    times = _Times(config, len(prompts), prompt_tokens)
    sizes = config.sizes or default_sizes(curve.unique_blocks * config.block_bytes, config.block_bytes)
    sampled = SampledTrace(prompts, config.sample_blocks)
    selective = config.admission != "all"
    curves: dict[str, list[Point]] = {}
    total = len(config.policies) * len(sizes)
    for policy in config.policies:
        curves[policy] = []
        for size in sizes:
            slots = size // config.block_bytes
            estimate = Estimate(curve.hits(slots) / blocks, 0.0)
            if policy != EXACT or selective:
                estimate = sampled.estimate(policy, slots, estimate.hit_ratio, selective=selective)
            curves[policy].append(times.point(size, estimate, blocks))
            if on_point is not None:
                on_point(sum(map(len, curves.values())), total)
    lru = [
        (slots * config.block_bytes, hits * config.block_tokens / prompt_tokens)
        for slots, hits in zip(*curve.curve(), strict=True)
        if not selective
    ]
    return PlanResult(
        len(prompts), prompt_tokens, curve.unique_blocks * config.block_bytes, curves, lru, times.ttft_s(0.0)
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """From hit ratios to times."""

    config: PlanConfig
    requests: int
    prompt_tokens: int

    def point(self, host_bytes: int, estimate: Estimate, blocks: int) -> Point:
        """Turn a share of the blocks into one of the tokens."""
        share = blocks * self.config.block_tokens / self.prompt_tokens
        hit = estimate.hit_ratio * share
        return Point(host_bytes, hit, estimate.error * share, self.ttft_s(hit))

    def ttft_s(self, hit_ratio: float) -> float:
        cost, tokens = self.config.cost, self.prompt_tokens / self.requests
        loading_s = tokens * hit_ratio * self.config.bytes_per_token / cost.load_bytes_per_s
        return cost.overhead_s + tokens * (1 - hit_ratio) / cost.prefill_tokens_per_s + loading_s


def default_sizes(unique_bytes: int, block_bytes: int) -> list[int]:
    """Return powers of two, the largest of which holds everything."""
    top = 1 << (unique_bytes - 1).bit_length()
    return [size for size in (top >> shift for shift in range(SIZES - 1, -1, -1)) if size >= block_bytes]


def knee(points: Sequence[Point]) -> Point:
    """Return the point that is furthest above the line from the first to the last one."""
    first, last = points[0], points[-1]
    width, height = last.host_bytes - first.host_bytes, last.hit_ratio - first.hit_ratio
    if width <= 0 or height <= 0:
        return first
    return max(
        points, key=lambda p: (p.hit_ratio - first.hit_ratio) / height - (p.host_bytes - first.host_bytes) / width
    )
