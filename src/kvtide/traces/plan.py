"""Planning: what host memory adds to the device's own prefix cache, and how much of it is worth buying.

1. A replay without host memory tells what the device serves of each prompt.
2. One pass over the trace tells what LRU would add at every size; other policies are run on samples.
3. The times after which blocks are used again tell what a size brings in steady state, and so which one to buy.
4. A replay with that size tells what it would have brought in this recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvtide.progress import Advance, counted, show_nothing
from kvtide.traces.added import AddedCurve
from kvtide.traces.certainty import certainty
from kvtide.traces.plan_config import PlanConfig
from kvtide.traces.queues import Queues
from kvtide.traces.recommendation import Outcome, Recommendation, recommendation, why_late, why_none, why_some
from kvtide.traces.record import TraceRequest
from kvtide.traces.recording import Recording, make_recording
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_result import ReplayResult
from kvtide.traces.reuse_times import reuse_times
from kvtide.traces.sampling import Estimate, SampledTrace
from kvtide.traces.steady_state import steady_state
from kvtide.traces.worth import NOTHING, SIZES, best_size, worth

__all__ = ["PlanConfig", "PlanResult", "Point", "make_plan"]

SHOWN_SIZES = 8
"""Sizes that are shown if none are given, each twice the one before: from where the host may add something to the
device, or from fewer, up to where everything fits."""
EXACT = ("lru", "prefix")
"""Policies whose whole curve comes from one pass, if all blocks are admitted: they keep what was used last."""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one size, over the recording."""

    host_bytes: int
    added_share: float
    """Share of the prompt tokens that are loaded and would be computed without host memory."""
    error: float
    """Standard error of that."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Curves by policy, and what to do."""

    requests: int
    too_large: int
    """Requests that do not fit into the device and were left out."""
    prompt_tokens: int
    block_tokens: int
    """Blocks that were planned with: the trace's own, or larger ones if these are too many."""
    unique_bytes: int
    device_share: float
    """Share of the prompt tokens that the device serves without host memory."""
    ttft_without_s: float
    """Mean time to first token without host memory."""
    curves: dict[str, list[Point]]
    ttft_s: list[float]
    """By size, with LRU."""
    lru_curve: list[tuple[int, float]]
    """LRU at every size where something changes: bytes and added share. Empty if not all blocks are admitted."""
    recommendation: Recommendation

    @property
    def best_policy(self) -> str:
        """The policy that adds most over all sizes; the simplest of equals, in the order they were named."""
        return max(self.curves, key=lambda policy: round(sum(point.added_share for point in self.curves[policy]), 3))


def make_plan(requests: Iterable[TraceRequest], config: PlanConfig, advance: Advance = show_nothing) -> PlanResult:
    """Read a trace once and plan for it."""
    exact = config.sample_blocks is None
    device_tokens = config.device_bytes // config.bytes_per_token
    recording = make_recording(
        counted(requests, "reading requests", advance), config.block_tokens, device_tokens, exact=exact
    )
    config = config.with_blocks(recording.block_tokens)
    before = _replay(recording, config, 0, "without host memory", advance)
    added = AddedCurve(recording, before.timeline, config.cost.prefill_tokens_per_s)
    chosen = _recommend(recording, config, before, added, advance)
    sizes = _shown_sizes(config, added.unique_blocks * config.block_bytes, chosen.host_bytes)
    return PlanResult(
        requests=len(recording.requests),
        too_large=recording.too_large,
        prompt_tokens=recording.prompt_tokens,
        block_tokens=recording.block_tokens,
        unique_bytes=added.unique_blocks * config.block_bytes,
        device_share=before.share(before.device_tokens),
        ttft_without_s=before.ttft_mean_s,
        curves=_curves(recording, config, added, sizes, advance),
        ttft_s=[_ttft_s(config, added, size) for size in sizes],
        lru_curve=[
            (blocks * config.block_bytes, share) for blocks, share in added.curve() if config.admission == "all"
        ],
        recommendation=chosen,
    )


def _replay(recording: Recording, config: PlanConfig, host_bytes: int, label: str, advance: Advance) -> ReplayResult:
    """Serve the recording with the real core."""
    replay = Replay(
        ReplayConfig(
            block_tokens=config.block_tokens,
            bytes_per_token=config.bytes_per_token,
            device_blocks=config.device_bytes // config.block_bytes,
            prefix_cache=config.prefix_cache,
            host_bytes=host_bytes,
            policy=config.served_with,
            mode="eager",
            cost=config.cost,
            admission=config.admission,
        )
    )
    requests = recording.requests
    return replay.run(counted(requests, f"replaying {label}", advance, len(requests)))


def _recommend(
    recording: Recording, config: PlanConfig, replayed: ReplayResult, added: AddedCurve, advance: Advance
) -> Recommendation:
    economy, visits = config.economy(), recording.visits()
    steady = steady_state(reuse_times(visits))
    sizes = list(config.sizes) or [size for size in SIZES if size >= config.block_bytes]
    device_blocks = added.device_blocks(config.device_bytes // config.block_bytes)
    chosen = best_size(steady, device_blocks, economy, sizes)
    before = after = _outcome(replayed)
    if chosen is not NOTHING:
        after = _outcome(_replay(recording, config, chosen.host_bytes, "with what is recommended", advance))
    worths = [worth(steady, device_blocks, economy, size) for size in sizes]
    if chosen is not NOTHING and not after.helps(before):
        why = (
            "Buy none: in a replay of this recording host memory adds nothing, or makes no turn faster; what would "
            "come back later is a guess."
        )
        chosen, after = NOTHING, before
    elif chosen is NOTHING:
        why = why_none(steady, before, max(worths, key=lambda one: (one.added_share > 0, one.net)), economy)
    else:
        following = next((one for one in worths if one.host_bytes > chosen.host_bytes), None)
        keeps_s = steady.age_s(chosen.host_bytes // config.block_bytes)
        why = why_some(chosen, following, before, after, keeps_s)
    certain = certainty(
        visits, chosen_bytes=chosen.host_bytes, device_blocks=device_blocks, economy=economy, sizes=sizes
    )
    why += why_late(before, after)
    return recommendation(chosen, why, policy=config.served_with, before=before, after=after, certain=certain)


def _ttft_s(config: PlanConfig, added: AddedCurve, size: int) -> float:
    """Return the mean time to first token with LRU."""
    queues = Queues(
        config.cost,
        device_blocks=config.device_bytes // config.block_bytes,
        block_tokens=config.block_tokens,
        bytes_per_token=config.bytes_per_token,
    )
    return queues.mean_ttft_s(added.works(size // config.block_bytes))


def _outcome(result: ReplayResult) -> Outcome:
    shares = (result.share(result.device_tokens), result.share(result.host_tokens))
    return Outcome(*shares, result.ttft_mean_s, max(result.ttft_s, default=0.0))


def _curves(
    recording: Recording, config: PlanConfig, added: AddedCurve, sizes: Sequence[int], advance: Advance
) -> dict[str, list[Point]]:
    """Return what each policy adds at each size."""
    prompts = [visit.hashes for visit in recording.visits()]
    sampled = SampledTrace(prompts, config.sample_blocks or 1 << 62, added.on_device)
    selective = config.admission != "all"
    token_share = added.blocks * config.block_tokens / recording.prompt_tokens
    curves: dict[str, list[Point]] = {}
    for policy in config.policies:
        points = curves[policy] = []
        for size in sizes:
            advance("sizes and policies", sum(map(len, curves.values())), len(config.policies) * len(sizes))
            slots = size // config.block_bytes
            estimate = Estimate(added.share(slots), 0.0)
            if selective or (policy not in EXACT and slots < added.unique_blocks):
                estimate = sampled.estimate(policy, slots, estimate.hit_ratio, selective=selective)
            points.append(Point(size, estimate.hit_ratio * token_share, estimate.error * token_share))
    return curves


def _shown_sizes(config: PlanConfig, unique_bytes: int, chosen_bytes: int) -> list[int]:
    """Return powers of two, the largest of which holds everything, and what is recommended."""
    if config.sizes:
        return list(config.sizes)
    top = 1 << (max(unique_bytes, chosen_bytes) - 1).bit_length()
    least = max(config.block_bytes, min(top, config.device_bytes // 2 if config.prefix_cache else 0))
    sizes = {size for size in (top >> shift for shift in range(SHOWN_SIZES)) if size >= least}
    return sorted(sizes | {chosen_bytes} - {0})
