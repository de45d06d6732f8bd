"""Requests whose blocks may not hold what their keys say: another connector was to load it, and may have failed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

from kvtide.vllm import versions
from kvtide.vllm.tracked import Tracked


class Begin(NamedTuple):
    """The step in which a request began in doubt."""

    output_tokens: int
    """What the request had said before."""
    end_tokens: int
    """Where that step's tokens end, without guesses: vLLM takes fewer for computed only if it has given the step up."""


NEVER = Begin(sys.maxsize, 0)
"""Of a request whose step was given up. vLLM computes it again, but may have lost count of its tokens (0.32, with
asynchronous scheduling), so what its blocks hold then is not worth a guess.
"""


class Doubts:
    """Of requests, from the step in which they begin until vLLM would have heard of a failure.

    What another connector loads in a step, vLLM takes for computed when it plans that step, and lets others hit it.
    That it has not come it hears with the step's output: then there is no token, and less is computed. So a token that
    has come ends the doubt, unless the request has hit blocks of another one that is in doubt still.
    """

    def __init__(self, block_tokens: Sequence[int]) -> None:
        """`block_tokens`: by group."""
        self._block_tokens = block_tokens
        self._since: dict[Tracked, Begin] = {}
        """In the order of beginning: nobody hits what comes later."""
        self._blocks: Set[int] | None = frozenset()
        """None: to be looked up."""

    def step(self, step: Any, begun: Sequence[Tracked]) -> None:
        """Take note that a step is planned, and of the requests that begin in it."""
        self._blocks = None
        self._end_what_is_certain()
        somebody_loads = versions.loads_in_step(step) is not False
        for tracked in _as_placed(begun, step):
            if tracked.doubtful:
                continue  # by somebody who has left
            request = tracked.request
            is_loaded = somebody_loads and request.num_computed_tokens > tracked.found_tokens
            tracked.doubtful = is_loaded or any(self._has_hit(tracked, other) for other in self._since)
            if tracked.doubtful:
                guessed = len(step.scheduled_spec_decode_tokens.get(tracked.id, ()))  # taken back if they are refused
                end_tokens = request.num_computed_tokens + step.num_scheduled_tokens[tracked.id] - guessed
                self._since[tracked] = Begin(request.num_output_tokens, end_tokens)

    def is_certain(self, tracked: Tracked) -> bool:
        """Whether the blocks of a request that runs, or has just ended, hold what their keys say."""
        if tracked.doubtful:
            self._end_what_is_certain()
        return not tracked.doubtful

    def leave(self, tracked: Tracked, known: Iterable[Tracked]) -> None:
        """Take note that a request ends in doubt, and that nobody finds its blocks any more.

        Those who have hit them are in doubt for good: what becomes of the blocks vLLM tells the first of them alone.
        """
        self.start_over(tracked)
        for other in known:
            if other.placed and self._has_hit(other, tracked):
                other.doubtful = True
                self._since[other] = NEVER

    def start_over(self, tracked: Tracked) -> None:
        """Take note that a request has no blocks any more."""
        tracked.doubtful = False
        self._since.pop(tracked, None)
        self._blocks = None

    def blocks(self) -> Set[int]:
        """Return the blocks that were not there when their requests began."""
        if self._blocks is None:
            self._blocks = {block for tracked in self._since for block in self._own_blocks(tracked)}
        return self._blocks

    def _own_blocks(self, tracked: Tracked) -> Iterable[int]:
        for size, table in zip(self._block_tokens, tracked.own, strict=True):
            yield from table[tracked.found_tokens // size :]

    def heard(self) -> None:
        """Take note that vLLM has heard what became of a step."""
        if self._since:
            self._end_what_is_certain()

    def _end_what_is_certain(self) -> None:
        still: list[Tracked] = []
        for tracked, begin in list(self._since.items()):
            others = [other for other in still if self._has_hit(tracked, other)]
            given_up = not tracked.preempted and tracked.request.num_computed_tokens < begin.end_tokens
            if given_up or any(self._since[other] is NEVER for other in others):
                self._since[tracked] = NEVER
            if others or not self._is_heard_of(tracked):
                still.append(tracked)
            else:
                tracked.doubtful = False
                del self._since[tracked]

    def _is_heard_of(self, tracked: Tracked) -> bool:
        if tracked.preempted:
            return False  # by now it says nothing; what was known before, `heard` has seen
        begin = self._since[tracked]
        ended_well = tracked.ended_well and begin is not NEVER
        return ended_well or tracked.request.num_output_tokens > begin.output_tokens

    def _has_hit(self, tracked: Tracked, other: Tracked) -> bool:
        """Whether what a request found on the device may be what another one was to bring."""
        size = self._block_tokens[0]
        at = slice(other.found_tokens // size, other.found_tokens // size + 1)
        return tracked.device_tokens > other.found_tokens and tracked.keys[0][at] == other.keys[0][at]


def _as_placed(begun: Sequence[Tracked], step: Any) -> Sequence[Tracked]:
    """Return those that begin in a step in the order in which vLLM has placed them: one may hit what another has."""
    if not begun:
        return begun
    by_id = {tracked.id: tracked for tracked in begun}
    return [by_id[id_] for id_ in step.num_scheduled_tokens if id_ in by_id]
