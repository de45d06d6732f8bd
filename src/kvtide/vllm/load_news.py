"""What vLLM hears of a rank's loads: each of them once, that it is over and whether it failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from kvtide.core import Copy


class LoadNews:
    """Loads from their beginning until vLLM has heard of their end."""

    def __init__(self) -> None:
        self._untold: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Request and device blocks of each load that vLLM has not heard of."""
        self.certain: dict[int, str] = {}
        """Loads that were announced while their last bytes are on their way, and their requests."""
        self.heard: set[int] = set()
        """Those of them that the scheduler has heard of: compute has to come after them.

        Steps that were scheduled before do not know of the request. vLLM schedules one step while another computes, and
        requests that decode there need not wait for somebody else's load (F31).
        """
        self._is_asked = False
        """The scheduler is in this process, and asks which loads are over."""
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unfilled: set[int] = set()

    @property
    def is_to_be_asked(self) -> bool:
        """Whether loads are over which the scheduler has to ask for."""
        return self._is_asked and bool(self._finished)

    @property
    def is_news_under_way(self) -> bool:
        """Whether the scheduler is about to hear of a load, so that its request can run."""
        return not self.certain.keys() <= self.heard

    @property
    def untold(self) -> tuple[int, ...]:
        """The loads that vLLM has not heard of."""
        return tuple(self._untold)

    @property
    def has_failures(self) -> bool:
        """Whether loads have failed that vLLM has not heard of."""
        return bool(self._failed)

    def begin(self, loads: Iterable[Copy]) -> None:
        """Take note of new loads."""
        self._untold.update((copy.id, (copy.request_id, copy.blocks)) for copy in loads)

    def announce(self, ended: Mapping[str, int | None]) -> None:
        """Announce what the scheduler says: see `StepMetadata.announce`."""
        for request_id, unfilled in ended.items():
            self._finished.add(request_id)
            if unfilled is not None:
                self._failed.add(request_id)
                self._unfilled.add(unfilled)

    def now_certain(self, transfer_ids: Set[int]) -> None:
        """Announce loads that nothing but the loss of the device can stop any more."""
        for transfer_id in self._untold.keys() & transfer_ids:
            request_id = self._untold[transfer_id][0]
            self.done(transfer_id)
            self.certain[transfer_id] = request_id

    def arrived(self, request_ids: Iterable[str]) -> None:
        """Take note that the scheduler has heard of loads, so that their requests may run in this step."""
        ids = set(request_ids)
        self.heard.update(transfer_id for transfer_id, request_id in self.certain.items() if request_id in ids)

    def done(self, transfer_id: int) -> None:
        """Announce that a load is over, unless vLLM has heard of it, or it is no load."""
        self.certain.pop(transfer_id, None)
        self.heard.discard(transfer_id)
        if transfer_id in self._untold:
            self._finished.add(self._untold.pop(transfer_id)[0])

    def failed(self, transfer_id: int) -> None:
        """Announce that a load has come to nothing, unless vLLM has heard of it, or it is no load."""
        if transfer_id in self._untold:
            request_id, blocks = self._untold.pop(transfer_id)
            self._finished.add(request_id)
            self._failed.add(request_id)
            self._unfilled.update(blocks)

    def take_loaded(self) -> set[str]:
        """Return the requests whose loads are over or certain, to a scheduler that will ask again."""
        self._is_asked = True
        loaded = self._finished - self._failed
        self._finished -= loaded
        return loaded

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Return the requests whose loads are over, and those among them whose loads failed.

        Only the latter, if the scheduler asks for the others: it does so before vLLM looks at this step.
        """
        failed, self._failed = self._failed, set()
        finished = set(failed) if self._is_asked else self._finished
        self._finished = self._finished - finished
        return finished, failed

    def take_unfilled(self) -> set[int]:
        """Return the blocks that failed loads left without content."""
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled
