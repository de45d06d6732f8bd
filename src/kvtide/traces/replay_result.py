"""What a replay found: where tokens came from, why they were missed, how long requests waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtide.core import Match, Metrics, NotLoaded, Plan
from kvtide.core.groups import Key
from kvtide.traces.replay_below import BelowStack
from kvtide.traces.replay_request import ReplayRequest

NEVER_SEEN = "never_seen"
"""Nobody has computed it before: no cache could have it."""
EVICTED = "evicted"
"""It was there once."""
NOT_ADMITTED = "not_admitted"
"""It was computed once before, and admission keeps such blocks out."""
NOT_FETCHED = "not_fetched"
"""It is below the host. Computing it seemed to be faster than fetching it, or it is too short."""
UNFINISHED_BLOCK = "unfinished_block"
"""Less than a block, or the last token, which is always computed."""


@dataclass(slots=True)
class ReplayResult:
    """Sums over a replay."""

    block_bytes: int
    selective: bool = False
    """Blocks are stored when they are asked for a second time."""
    requests: int = 0
    too_large: int = 0
    """Requests that do not fit into the device pool at all."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    below_tokens: int = 0
    """Tokens that came up from below the host for the request that needed them."""
    computed_tokens: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Tokens that were computed, by reason."""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    fetched_bytes: int = 0
    """From below to the host."""
    sunk_bytes: int = 0
    """From the host to what is below."""
    lookups: int = 0
    not_sunk: Counter[str] = field(default_factory=Counter)
    """Blocks that should be below and are not, by reason."""
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
    timeline: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    """Of each admitted request: when, and tokens from the device, from the host, from below, computed."""
    _seen: set[Key] = field(default_factory=set)
    _seen_again: set[Key] = field(default_factory=set)

    def admitted(self, request: ReplayRequest, match: Match, below_host: BelowStack | None = None) -> None:
        """Count where the tokens of a prompt come from."""
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        self.device_tokens += request.device_tokens
        below = request.below_tokens
        self.host_tokens += match.tokens - below
        self.below_tokens += below
        computed = request.prompt_tokens - request.resume_at
        self.computed_tokens += computed
        self.lost_to_blocks_s += request.admitted_s - request.arrival_s
        self.timeline.append((request.admitted_s, request.device_tokens, match.tokens - below, below, computed))
        self._count_missed(request, match, computed, below_host)

    def _count_missed(self, request: ReplayRequest, match: Match, computed: int, below_host: BelowStack | None) -> None:
        for why, tokens in match.missed.items():
            computed -= tokens
            if why is not NotLoaded.NOT_CACHED:
                self.missed[why.value] += tokens
                continue
            first = request.resume_at // request.block_tokens
            missing = request.keys[first : first + tokens // request.block_tokens]
            if below_host is not None:
                not_fetched = below_host.leading(missing)
                missing = missing[not_fetched:]
                self.missed[NOT_FETCHED] += not_fetched * request.block_tokens
            new = _count_missing(missing, self._seen)
            kept_out = _count_missing(missing, self._seen_again) - new if self.selective else 0
            self.missed[NEVER_SEEN] += new * request.block_tokens
            self.missed[NOT_ADMITTED] += kept_out * request.block_tokens
            self.missed[EVICTED] += (len(missing) - new - kept_out) * request.block_tokens
        self.missed[UNFINISHED_BLOCK] += computed
        if self.selective:
            self._seen_again.update(self._seen.intersection(request.keys))
        self._seen.update(request.keys)

    def first_token(self, ttft_s: float) -> None:
        """Count a request whose prompt is done."""
        self.ttft_s.append(ttft_s)

    def copied(self, plan: Plan) -> None:
        """Count the bytes of a plan."""
        for copy in plan.loads:
            self.loaded_bytes += len(copy.slots) * self.block_bytes
        for copy in plan.stores:
            self.stored_bytes += len(copy.slots) * self.block_bytes

    def close_server(self, metrics: Metrics) -> None:
        """Take the counters of a server."""
        self.evicted_blocks += metrics.evicted_blocks
        self.lookups += metrics.lookups
        self.fetched_bytes += metrics.fetched_blocks * self.block_bytes
        self.sunk_bytes += metrics.sunk_blocks * self.block_bytes
        self.not_stored.update({why.value: blocks for why, blocks in metrics.not_stored.items()})
        self.not_sunk.update({why.value: blocks for why, blocks in metrics.not_sunk.items()})

    def close(self, now_s: float) -> None:
        """Nothing happens any more."""
        self.duration_s = now_s
        self.ttft_s.sort()

    def share(self, tokens: int) -> float:
        """Return tokens as a share of all prompt tokens."""
        return tokens / max(1, self.prompt_tokens)

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that were not computed."""
        return self.share(self.device_tokens + self.host_tokens + self.below_tokens)

    @property
    def ttft_mean_s(self) -> float:
        """Mean time to first token."""
        return sum(self.ttft_s) / max(1, len(self.ttft_s))

    def ttft_at(self, share: float) -> float:
        """Return the time to first token that this share of the requests did not exceed."""
        return self.ttft_s[min(len(self.ttft_s) - 1, int(share * len(self.ttft_s)))] if self.ttft_s else 0.0


def _count_missing(keys: Sequence[Key], known: set[Key]) -> int:
    return sum(key not in known for key in keys)
