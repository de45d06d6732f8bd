"""What LRU adds to the device at every size of host memory, over a recording.

The host keeps a copy of all that is computed, also of what the device still has. So it adds what it has of a prompt
beyond the device's part, and a host that is not larger than the device adds next to nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.queues import Work
from kvtide.traces.recording import Recording

Served = tuple[float, int, int, int, int]
"""When a request was admitted, and its tokens from the device, from the host, from below, computed."""


class AddedCurve:
    """One pass over a recording of which it is known what the device serves."""

    def __init__(self, recording: Recording, served: Sequence[Served], prefill_tokens_per_s: float) -> None:
        """`served` is what a replay without host memory tells of each request."""
        self._recording = recording
        self._visits = recording.visits()
        self.on_device = [device_tokens // recording.block_tokens for _, device_tokens, *_ in served]
        """Blocks of each prompt."""
        self.blocks = sum(len(visit.hashes) for visit in self._visits)
        """Full blocks of all prompts."""
        self._beyond, self._alone = LruCurve(), LruCurve()
        self._steps: list[list[tuple[int, int]]] = []
        computing: list[tuple[float, int]] = []
        for index, (visit, there) in enumerate(zip(self._visits, self.on_device, strict=True)):
            when_s, *_, tokens = served[index]
            while computing and computing[0][0] <= when_s:
                self._beyond.use(self._visits[heapq.heappop(computing)[1]].hashes)
            self._steps.append(self._beyond.look(visit.hashes, there))
            self._alone.add(visit.hashes)
            # Nobody finds on the host what is still being computed.
            heapq.heappush(computing, (when_s + tokens / prefill_tokens_per_s, index))

    @property
    def unique_blocks(self) -> int:
        """Different blocks."""
        return self._alone.unique_blocks

    def share(self, slots: int) -> float:
        """Return the share of all blocks that a host of so many slots adds."""
        return self._beyond.hits(slots) / max(1, self.blocks)

    def curve(self) -> list[tuple[int, float]]:
        """Return every size where something changes, and the share of the prompt tokens that it adds."""
        tokens = self._recording.prompt_tokens
        return [
            (slots, hits * self._recording.block_tokens / tokens)
            for slots, hits in zip(*self._beyond.curve(), strict=True)
        ]

    def device_blocks(self, blocks_max: int) -> int:
        """Return the size of an LRU memory that hits as much as the device, which holds running requests too."""
        served, best = sum(self.on_device), 0
        for slots, hits in zip(*self._alone.curve(), strict=True):
            if slots > blocks_max or hits > served:
                return min(blocks_max, max(best, slots - 1))
            best = slots
        return blocks_max if served else 0

    def works(self, slots: int) -> list[Work]:
        """Return where the tokens of each request come from with a host of so many slots."""
        return [
            Work(
                request.time_s,
                visit.hashes,
                request.prompt_tokens,
                request.output_tokens,
                there,
                sum(blocks for needed, blocks in steps if needed <= slots),
            )
            for request, visit, there, steps in zip(
                self._recording.requests, self._visits, self.on_device, self._steps, strict=True
            )
        ]
