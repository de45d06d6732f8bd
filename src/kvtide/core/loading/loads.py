"""Loads: reserve what was found, copy it to the device, tell the request."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import NULL_BLOCK
from kvtide.core.index.index import Index
from kvtide.core.ledger import Ledger, LoadEntry
from kvtide.core.loading.load_break_even import FixedBreakEven, LoadBreakEven
from kvtide.core.match import Match
from kvtide.core.messages import Outcome
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotLoaded
from kvtide.core.requests import Request, RequestEvent
from kvtide.errors import ProtocolError


class Loads:
    """Keeps promises: what was offered stays on the host until the engine has answered, and then until it is read."""

    def __init__(
        self, config: OffloadConfig, device: DevicePool, index: Index, *, ledger: Ledger, metrics: Metrics
    ) -> None:
        self._device = device
        self._index = index
        least = config.min_load_tokens
        self.break_even = LoadBreakEven() if least is None else FixedBreakEven(least)
        self._ledger = ledger
        self._metrics = metrics
        self._planned: list[LoadEntry] = []
        self._settled_at_once: list[LoadEntry] = []
        self._loaded: list[str] = []
        self._failed: list[str] = []

    @property
    def waiting(self) -> bool:
        """Whether the next plan or the next outcome will have something."""
        return bool(self._planned or self._settled_at_once)

    def match(self, request: Request, device_tokens: int, num_tokens: int) -> Match:
        """Look a request up. Changes nothing."""
        if request.load_failed or self._ledger.overdue:
            why = NotLoaded.NO_REPORT if self._ledger.overdue else NotLoaded.COPY_FAILED
            return Match(request.id, device_tokens, 0, (), {why: num_tokens - device_tokens}, num_tokens)
        return self._index.look_up(request, device_tokens, num_tokens, self.break_even.pays)

    def reserve(self, request: Request, match: Match) -> None:
        """Keep what was matched (F11), instead of what was reserved before."""
        if match is not request.reservation:
            lease = self._index.lease(match)
            self.release(request)
            request.reservation, request.lease = match, lease
        self._index.wait(request, match)

    def release(self, request: Request) -> None:
        """Return what is reserved, if anything is."""
        if request.lease is not None:
            self._index.release(request.lease)
        request.reservation = request.lease = None

    def admit(self, request: Request, accepted_tokens: int) -> bool:
        """Turn a reservation into a load of its first `accepted_tokens` tokens; return whether one is under way."""
        self._index.drop(request)
        match = request.reservation
        offered = match.tokens if match is not None else 0
        if not 0 <= accepted_tokens <= offered:
            raise ProtocolError(f"request {request.id!r}: {accepted_tokens} tokens accepted, {offered} offered")
        if match is not None:
            for why, tokens in match.missed.items():
                self._metrics.not_loaded[why] += tokens
            if accepted_tokens < offered:
                self._metrics.not_loaded[NotLoaded.NOT_ACCEPTED] += offered - accepted_tokens
            if accepted_tokens or NotLoaded.BELOW_BREAK_EVEN in match.missed:
                self.break_even.decided(tried=bool(accepted_tokens))
        request.considered = [_leading_nulls(table) for table in request.blocks]
        if match is None or not accepted_tokens:
            request.handle(RequestEvent.ADMIT)
            self.release(request)
            return False
        self._start(request, match, accepted_tokens)
        return True

    def take_planned(self) -> list[LoadEntry]:
        """Return the loads that were started since the last plan; from now on reports are expected."""
        planned: list[LoadEntry] = []
        for load in self._planned:
            if load.lease is not None and self._index.is_over(load.lease):
                load.failure = "what was leased is gone"
                self._device.unpin(load.blocks)  # no copy will come that needs them
                load.blocks = []
                self._settled_at_once.append(load)
            else:
                self._ledger.start(load)
                planned.append(load)
        self._planned = []
        return planned

    def take_settled_at_once(self) -> list[LoadEntry]:
        """Return loads that no worker has to hear of."""
        settled, self._settled_at_once = self._settled_at_once, []
        return settled

    def settle(self, load: LoadEntry) -> None:
        """Every rank has reported."""
        self._device.unpin(load.blocks)
        if load.lease is not None:
            self._index.release(load.lease)
        if load.failure is not None:
            self._metrics.loads_failed += 1
        if load.request.load_id == load.id:
            (self._loaded if self.arrive(load) else self._failed).append(load.request.id)

    def take_outcome(self) -> Outcome:
        """Return the requests that need not wait any longer, since the last time."""
        overdue = []
        for load in self._ledger.overdue:
            if isinstance(load, LoadEntry) and load.request.load_id == load.id:
                self.arrive(load)
                overdue.append(load.request.id)
        outcome = Outcome(tuple(self._loaded), (*self._failed, *overdue), tuple(overdue))
        self._loaded, self._failed = [], []
        return outcome

    def arrive(self, load: LoadEntry) -> bool:
        """Let a request go on whose load is over, or certain to be. Returns whether it has its tokens."""
        request = load.request
        succeeded = load.failure is None and not load.abandoned
        request.load_id = None
        request.handle(RequestEvent.LOAD_ENDED)
        if succeeded:
            request.computed_tokens = load.boundary
            self._metrics.loaded_blocks += len(load.blocks)
            self._metrics.loaded_tokens += load.tokens
        else:
            request.load_failed = True
            why = NotLoaded.RESET if load.abandoned else NotLoaded.COPY_FAILED
            if load.ranks_left:
                why = NotLoaded.NO_REPORT
            self._metrics.not_loaded[why] += load.tokens
        return succeeded

    def reset(self) -> None:
        """Let loads that are planned come to nothing."""
        for load in self._planned:
            load.abandoned = True

    def _start(self, request: Request, match: Match, accepted_tokens: int) -> None:
        boundary = match.device_tokens + accepted_tokens
        load = LoadEntry(self._ledger.next_id(), request=request, boundary=boundary, tokens=accepted_tokens)
        needed: Match | None = match
        if accepted_tokens < match.tokens:
            # A window ends elsewhere now: other blocks are needed than were offered, and they may not be there.
            needed = self._index.narrow(request, match, boundary)
        if needed is None:
            load.failure = "the accepted part of the offer cannot be resumed from"
        else:
            load.lease = request.lease
            self._fill(load, request, needed)
            request.lease = None  # it is the load's now, and released with it
        request.handle(RequestEvent.ADMIT_WITH_LOAD)
        self.release(request)
        request.load_id = load.id
        self._device.pin(load.blocks)
        (self._planned if load.blocks else self._settled_at_once).append(load)

    def _fill(self, load: LoadEntry, request: Request, match: Match) -> None:
        """Pair slots with the device blocks that the engine has allocated; it leaves out what it does not need."""
        if load.lease is not None and match is not request.reservation:
            self._index.release_part(load.lease, match.slots)
        self._index.use(match)
        for group, first, slots in match.pieces:
            blocks = request.blocks[group][first : first + len(slots)]
            if len(blocks) < len(slots):
                raise ProtocolError(
                    f"request {request.id!r}: group {group} has {len(request.blocks[group])} blocks in its table, "
                    f"and the load needs {first + len(slots)}"
                )
            if NULL_BLOCK in blocks:
                pairs = [pair for pair in zip(blocks, slots, strict=True) if pair[0] != NULL_BLOCK]
                load.blocks += [block for block, _ in pairs]
                load.slots += [slot for _, slot in pairs]
            else:
                load.blocks += blocks
                load.slots += slots
        if load.lease is not None and len(load.slots) < len(load.lease.slots):
            self._index.release_part(load.lease, load.slots)


def _leading_nulls(table: Sequence[int]) -> int:
    """Return how many blocks at the front the engine left out: others have computed them, not this request."""
    return next((index for index, block in enumerate(table) if block != NULL_BLOCK), len(table))
