"""What the scheduler side remembers about one of vLLM's requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import RequestStatus

from kvtide.core import Key

_CUT_SHORT = ("FINISHED_ABORTED", "FINISHED_ERROR")


@dataclass(slots=True, eq=False)
class Tracked:
    """A request from its arrival to its end."""

    id: str
    request: Any
    keys: list[Sequence[Key]]
    tables: list[Sequence[int]]
    """Per group. The core holds on to this list; its elements are exchanged when vLLM allocates anew."""
    own: Sequence[Sequence[int]] = ()
    """The request's own blocks, per group, as vLLM has placed them."""
    placed: bool = False
    """vLLM has allocated blocks, and the core knows."""
    loading: bool = False
    blocks_gone: bool = False
    """A reset came while it loads: vLLM has its blocks back and counts nothing as computed, however the load ends."""
    load_tokens: int = 0
    load_began_s: float = 0.0
    """How many tokens its last load brings, and when vLLM took them."""
    matched: bool = False
    """vLLM has asked for it."""
    device_tokens: int = 0
    """What the device had when the request was matched last."""
    doubtful: bool = False
    """Whether its blocks hold what their keys say is not known (see `Doubts`)."""
    end_tokens: int = 0
    """Where the tokens end that were scheduled when it last got new blocks."""
    decoding: bool = False
    """Whether that was the end of its tokens."""

    @property
    def running(self) -> bool:
        """Whether the core expects to hear of computed tokens."""
        return self.placed and not self.loading

    @property
    def computed_tokens(self) -> int:
        """Tokens that are really computed, without placeholders of asynchronous scheduling."""
        return int(self.request.num_computed_tokens - self.request.num_output_placeholders)

    @property
    def ended_well(self) -> bool:
        """Whether it has come to its end."""
        status = self.request.status
        return bool(RequestStatus.is_finished(status) and status.name not in _CUT_SHORT)

    @property
    def preempted(self) -> bool:
        """Whether vLLM has just taken its blocks, and set what is computed to 0."""
        return bool(self.request.status == RequestStatus.PREEMPTED)

    @property
    def has_begun(self) -> bool:
        """Whether a step was scheduled since vLLM has placed it: nothing was computed before."""
        return self.running and self.end_tokens > 0

    @property
    def found_tokens(self) -> int:
        """What was there when it was placed: on the device, and on the host."""
        return self.device_tokens + self.load_tokens

    def scheduled(self, new_tokens: int) -> None:
        """Note what this step computes."""
        self.end_tokens = self.request.num_computed_tokens + new_tokens
        self.decoding = self.end_tokens >= self.request.num_tokens

    def computed_before_preemption(self) -> int:
        """Return what was computed when the request was preempted: by now vLLM has set its own count to 0.

        Between two allocations of blocks a request is not looked at, so this is reconstructed. While it decodes,
        everything but the last sampled token was computed; while it prefills, what was scheduled last, unless
        speculated tokens were refused.
        """
        known = int(self.request.num_tokens) - 1
        return known if self.decoding else min(self.end_tokens, known)
