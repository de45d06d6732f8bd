"""What vLLM hears of a rank's loads: each of them once, that it is over and whether it failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from kvtide.core import Copy


class LoadNews:
    """Loads from their beginning until vLLM has heard of their end."""

    def __init__(self) -> None:
        self._untold: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Request and device blocks of each load that vLLM has not heard of."""
        self.certain: set[int] = set()
        """Loads that vLLM has heard of while their last bytes are on their way: compute has to come after them."""
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unfilled: set[int] = set()

    @property
    def untold(self) -> tuple[int, ...]:
        """The loads that vLLM has not heard of."""
        return tuple(self._untold)

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
            self.done(transfer_id)
            self.certain.add(transfer_id)

    def done(self, transfer_id: int) -> None:
        """Announce that a load is over, unless vLLM has heard of it, or it is no load."""
        self.certain.discard(transfer_id)
        if transfer_id in self._untold:
            self._finished.add(self._untold.pop(transfer_id)[0])

    def failed(self, transfer_id: int) -> None:
        """Announce that a load has come to nothing, unless vLLM has heard of it, or it is no load."""
        if transfer_id in self._untold:
            request_id, blocks = self._untold.pop(transfer_id)
            self._finished.add(request_id)
            self._failed.add(request_id)
            self._unfilled.update(blocks)

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Return the requests whose loads are over, and those among them whose loads failed."""
        finished, self._finished = self._finished, set()
        failed, self._failed = self._failed, set()
        return finished, failed

    def take_unfilled(self) -> set[int]:
        """Return the blocks that failed loads left without content."""
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled
