"""How loads end, and how vLLM hears of it."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.request import RequestStatus

from kvtide.core import NULL_BLOCK, OffloadManager, Outcome
from kvtide.vllm import versions
from kvtide.vllm.layout import Layout
from kvtide.vllm.requests import Requests
from kvtide.vllm.step_messages import StepMetadata
from kvtide.vllm.tracked import Tracked


class LoadEnds:
    """Sees to it that vLLM learns of every load that is over, and of each one that came to nothing."""

    def __init__(self, manager: OffloadManager, requests: Requests, layout: Layout, cache_manager: Any) -> None:
        """`cache_manager`: vLLM's, or None if it could not be found."""
        self._manager = manager
        self._requests = requests
        self._cache_manager = cache_manager
        self._first_group = layout.geometry.groups[0]
        self._by_hand = len(layout.geometry.groups) > 1 and not versions.FAILS_BY_REQUEST
        """Whether a failed load is told to vLLM by giving its blocks back: there is no other way."""
        self.can_be_told = not self._by_hand or cache_manager is not None
        """Whether vLLM can be told that a load failed."""
        self.admitted = False
        """Whether loads were admitted since the last plan: some may be over without any copy."""
        self.unannounced: dict[str, int | None] = {}
        """What the next step has to announce: see `StepMetadata.announce`."""
        self._heard: list[str] = []
        """What vLLM is about to hear of, and the workers with the next step: see `StepMetadata.arrived`."""

    def announce(self, step: StepMetadata, *, overdue: bool) -> None:
        """Let the workers tell vLLM of loads that are over without their doing. `overdue`: some transfers are."""
        if self.admitted or overdue:
            self.admitted = False
            self._announce_loads_without_copies(step)
        step.announce.update(self.unannounced)
        self.unannounced.clear()
        step.arrived, self._heard = tuple(self._heard), []

    def _announce_loads_without_copies(self, step: StepMetadata) -> None:
        """Announce loads that are over already: no worker will hear of them otherwise.

        Of those that are overdue, the workers that have not told vLLM are asked by the plan.
        """
        outcome = self._manager.report()
        for request_id in outcome.loaded:
            self._requests.known[request_id].loading = False
            step.announce[request_id] = None
        for request_id in outcome.failed:
            tracked = self._requests.known[request_id]
            if request_id not in outcome.overdue:
                step.announce[request_id] = self._first_unfilled(tracked)
            elif self._by_hand:
                self._take_blocks_back(tracked.request)
            self._requests.restart(tracked)

    def report(self, outcome: Outcome, output: Any) -> None:
        """Take what became of loads. `output` is what vLLM is about to look at, and may be corrected."""
        for request_id in outcome.loaded:
            self._loaded(self._requests.known[request_id])
        for request_id in outcome.failed:
            self._failed(self._requests.known[request_id], output)
        self._heard += output.finished_recving or ()
        for request_id in tuple(output.finished_recving or ()):
            self._requests.aborted.pop(request_id, None)
            tracked = self._requests.known.get(request_id)
            if tracked is not None and tracked.loading:
                self._arrived(tracked, output)

    def _loaded(self, tracked: Tracked) -> None:
        tracked.loading = False
        self._manager.loaded(tracked.load_tokens, time.monotonic() - tracked.load_began_s)

    def _arrived(self, tracked: Tracked, output: Any) -> None:
        """Let a request go on whose load is certain, though not all ranks have reported it."""
        if not self._is_failed(tracked, output) and self._manager.arrived(tracked.id):
            self._loaded(tracked)
        else:
            self._failed(tracked, output)

    def _failed(self, tracked: Tracked, output: Any) -> None:
        """Let vLLM compute what was not loaded.

        A worker that saw the copy fail has said so. If it has not (the copy was fine, but a reset came between),
        the news that the load is over is held back, and all workers are asked to announce it as failed.
        """
        self._requests.restart(tracked)
        if tracked.blocks_gone or self._is_failed(tracked, output):
            return
        if self._by_hand:
            self._take_blocks_back(tracked.request)
            return
        if output.finished_recving:
            output.finished_recving.discard(tracked.id)
        self.unannounced[tracked.id] = self._first_unfilled(tracked)

    def _is_failed(self, tracked: Tracked, output: Any) -> bool:
        """Whether a worker has told vLLM that the load of a request failed."""
        failed = getattr(output, "failed_recving", None) or ()
        return tracked.id in failed or self._first_unfilled(tracked) in output.invalid_block_ids

    def start_over(self) -> None:
        """Give vLLM all blocks back that are held for loads: nothing computed until now counts any more (F9).

        It cannot reset while requests have blocks, and does not preempt those that hold blocks for a load and do not
        run yet. They start again, once vLLM hears that their load is over; blocks that a copy still writes to stay
        pinned until it ends.
        """
        if self._cache_manager is None:
            return
        for request in self._requests.aborted.values():
            self._cache_manager.free(request)
        for tracked in [self._requests.known[request_id] for request_id in self._requests.holding]:
            if tracked.request.status == RequestStatus.RUNNING:
                continue
            self._take_blocks_back(tracked.request)
            if tracked.loading:
                tracked.blocks_gone = True
            elif tracked.placed:
                self._requests.restart(tracked)

    def _take_blocks_back(self, request: Any) -> None:
        """Let vLLM compute a request from its beginning."""
        self._cache_manager.free(request)
        request.num_computed_tokens = 0

    def _first_unfilled(self, tracked: Tracked) -> int:
        """Return the block in which the load of a request was to begin (single-group models)."""
        index = tracked.device_tokens // self._first_group.block_tokens
        return next(iter(tracked.tables[0][index : index + 1]), NULL_BLOCK)
