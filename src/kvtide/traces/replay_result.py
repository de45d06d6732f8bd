"""What a replay found: where tokens came from, why they were missed, how long requests waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtide.core import Match, Metrics, NotLoaded, Plan
from kvtide.core.groups import Key
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay_request import ReplayRequest

NEVER_SEEN = "never_seen"
"""Nobody has computed it before: no cache could have it."""
EVICTED = "evicted"
"""It was there once."""
UNFINISHED_BLOCK = "unfinished_block"
"""Less than a block, or the last token, which is always computed."""


@dataclass(slots=True)
class ReplayResult:
    """Sums over a replay."""

    block_bytes: int
    requests: int = 0
    too_large: int = 0
    """Requests that do not fit into the device pool at all."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    computed_tokens: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Tokens that were computed, by reason."""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    evicted_blocks: int = 0
    not_stored: Counter[str] = field(default_factory=Counter)
    """Blocks that were not stored, by reason."""
    ttft_s: list[float] = field(default_factory=list)
    duration_s: float = 0.0
    lost_to_blocks_s: float = 0.0
    """Requests waited for device blocks, summed up."""
    lost_to_compute_s: float = 0.0
    """Requests waited for the prefill of others, summed up."""
    lost_to_pins_s: float = 0.0
    """The queue stood still although pinned blocks would have been enough."""
    timeline: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Of each admitted request: when, and tokens from the device, from the host, computed."""
    _seen: set[Key] = field(default_factory=set)

    def arrived(self, request: TraceRequest) -> None:
        """Count a request."""
        self.requests += 1

    def admitted(self, request: ReplayRequest, match: Match) -> None:
        """Count where the tokens of a prompt come from."""
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        self.device_tokens += request.device_tokens
        self.host_tokens += match.tokens
        computed = request.prompt_tokens - request.resume_at
        self.computed_tokens += computed
        self.lost_to_blocks_s += request.admitted_s - request.arrival_s
        self.timeline.append((request.admitted_s, request.device_tokens, match.tokens, computed))
        self._count_missed(request, match, computed)

    def _count_missed(self, request: ReplayRequest, match: Match, computed: int) -> None:
        for why, tokens in match.missed.items():
            if why is not NotLoaded.NOT_CACHED:
                self.missed[why.value] += tokens
                computed -= tokens
                continue
            first = request.resume_at // request.block_tokens
            missing = request.keys[first : first + tokens // request.block_tokens]
            new = self._never_seen(missing) * request.block_tokens
            self.missed[NEVER_SEEN] += new
            self.missed[EVICTED] += tokens - new
            computed -= tokens
        self.missed[UNFINISHED_BLOCK] += computed
        self._seen.update(request.keys)

    def _never_seen(self, keys: Sequence[Key]) -> int:
        return sum(key not in self._seen for key in keys)

    def first_token(self, ttft_s: float) -> None:
        """Count a request whose prompt is done."""
        self.ttft_s.append(ttft_s)

    def copied(self, plan: Plan) -> None:
        """Count the bytes of a plan."""
        for copy in plan.loads:
            self.loaded_bytes += len(copy.slots) * self.block_bytes
        for copy in plan.stores:
            self.stored_bytes += len(copy.slots) * self.block_bytes

    def close(self, now_s: float, metrics: Metrics) -> None:
        """Take the last numbers."""
        self.duration_s = now_s
        self.evicted_blocks = metrics.evicted_blocks
        self.not_stored = Counter({why.value: blocks for why, blocks in metrics.not_stored.items()})
        self.ttft_s.sort()

    def share(self, tokens: int) -> float:
        """Return tokens as a share of all prompt tokens."""
        return tokens / max(1, self.prompt_tokens)

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that were not computed."""
        return self.share(self.device_tokens + self.host_tokens)

    def ttft_at(self, share: float) -> float:
        """Return the time to first token that this share of the requests did not exceed."""
        return self.ttft_s[min(len(self.ttft_s) - 1, int(share * len(self.ttft_s)))] if self.ttft_s else 0.0
