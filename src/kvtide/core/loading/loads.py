"""Loads: reserve what was found, copy it to the device, tell the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvtide.core.below.searches import Searches
from kvtide.core.below.sinks import Sinks
from kvtide.core.device import DevicePool
from kvtide.core.groups import NULL_BLOCK
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Ledger, LoadEntry
from kvtide.core.match import Match, Matcher, Piece
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotLoaded
from kvtide.core.requests import Request, RequestEvent
from kvtide.errors import ProtocolError

_NOT_THERE = (NotLoaded.NOT_CACHED, NotLoaded.STILL_STORING)


class Loads:
    """Keeps promises: what was offered stays on the host until the engine has answered, and then until it is read."""

    def __init__(
        self,
        device: DevicePool,
        host: HostPool,
        *,
        matcher: Matcher,
        searches: Searches,
        sinks: Sinks,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        self._device = device
        self._host = host
        self._matcher = matcher
        self._searches = searches
        self._sinks = sinks
        self._ledger = ledger
        self._metrics = metrics
        self._planned: list[LoadEntry] = []
        self._settled_at_once: list[LoadEntry] = []

    @property
    def waiting(self) -> bool:
        """Whether the next plan or the next outcome will have something."""
        return bool(self._planned or self._settled_at_once)

    def match(self, request: Request, device_tokens: int, num_tokens: int) -> Match:
        """Look a request up. Changes nothing."""
        if request.load_failed or self._ledger.overdue:
            why = NotLoaded.NO_REPORT if self._ledger.overdue else NotLoaded.COPY_FAILED
            return Match(request.id, device_tokens, 0, (), {why: num_tokens - device_tokens}, num_tokens)
        match = self._matcher.match(request.id, request.keys, device_tokens, num_tokens)
        if self._searches.waits(request, match):
            return replace(match, waits=True)
        if request.search is not None and request.search.late:
            missed = {NotLoaded.TIER_LATE if why in _NOT_THERE else why: n for why, n in match.missed.items()}
            return replace(match, missed=missed)
        return match

    def reserve(self, request: Request, match: Match) -> None:
        """Pin what was matched (F11), instead of what was reserved before."""
        self._host.pin(match.slots)
        self.release(request)
        request.reservation = match
        self._searches.reserved(request, match)

    def release(self, request: Request) -> None:
        """Unpin what is reserved, if anything is."""
        if request.reservation is not None:
            self._host.unpin(request.reservation.slots)
            request.reservation = None

    def admit(self, request: Request, accepted_tokens: int) -> bool:
        """Turn a reservation into a load of its first `accepted_tokens` tokens; return whether one is under way."""
        self._searches.drop(request)
        match = request.reservation
        offered = match.tokens if match is not None else 0
        if not 0 <= accepted_tokens <= offered:
            raise ProtocolError(f"request {request.id!r}: {accepted_tokens} tokens accepted, {offered} offered")
        if match is not None:
            for why, tokens in match.missed.items():
                self._metrics.not_loaded[why] += tokens
            if accepted_tokens < offered:
                self._metrics.not_loaded[NotLoaded.NOT_ACCEPTED] += offered - accepted_tokens
        request.considered = [_leading_nulls(table) for table in request.blocks]
        if match is None or not accepted_tokens:
            request.handle(RequestEvent.ADMIT)
            self.release(request)
            return False
        self._start(request, match, accepted_tokens)
        return True

    def take_planned(self) -> list[LoadEntry]:
        """Return the loads that were started since the last plan; from now on reports are expected."""
        planned, self._planned = self._planned, []
        for load in planned:
            self._ledger.start(load)
        return planned

    def take_settled_at_once(self) -> list[LoadEntry]:
        """Return loads that no worker has to hear of."""
        settled, self._settled_at_once = self._settled_at_once, []
        return settled

    def settle(self, load: LoadEntry, request: Request | None) -> bool | None:
        """Every rank has reported. Returns whether the request has its tokens; None if it does not wait for them."""
        self._device.unpin(load.blocks)
        self._host.unpin(load.slots)
        if load.failure is not None:
            self._metrics.loads_failed += 1
        if request is None or request.load_id != load.id:
            return None
        return self.arrive(load, request)

    def arrive(self, load: LoadEntry, request: Request) -> bool:
        """Let a request go on whose load is over, or certain to be. Returns whether it has its tokens."""
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
        load = LoadEntry(self._ledger.next_id(), request_id=request.id, boundary=boundary, tokens=accepted_tokens)
        pieces = match.pieces
        if accepted_tokens < match.tokens:
            # A window ends elsewhere now: other blocks are needed than were offered, and they may not be there.
            narrowed = self._matcher.pieces(request.keys, match.device_tokens, boundary)
            if narrowed is None:
                load.failure = "the accepted part of the offer cannot be resumed from"
            pieces = narrowed or ()
        self._fill(load, request, pieces)
        request.handle(RequestEvent.ADMIT_WITH_LOAD)
        if load.slots == match.slots:
            request.reservation = None  # the load takes its pins over
        else:
            self._host.pin(load.slots)
            self.release(request)
        request.load_id = load.id
        self._device.pin(load.blocks)
        (self._planned if load.blocks else self._settled_at_once).append(load)

    def _fill(self, load: LoadEntry, request: Request, pieces: tuple[Piece, ...]) -> None:
        """Pair slots with the device blocks that the engine has allocated; it leaves out what it does not need."""
        self._host.tick()
        for group, first, slots in pieces:
            blocks = request.blocks[group][first : first + len(slots)]
            if len(blocks) < len(slots):
                raise ProtocolError(
                    f"request {request.id!r}: group {group} has {len(request.blocks[group])} blocks in its table, "
                    f"and the load needs {first + len(slots)}"
                )
            self._host.use(group, slots, (first + 1) * self._matcher.block_tokens(group))
            self._sinks.used(slots)
            if NULL_BLOCK in blocks:
                pairs = [pair for pair in zip(blocks, slots, strict=True) if pair[0] != NULL_BLOCK]
                load.blocks += [block for block, _ in pairs]
                load.slots += [slot for _, slot in pairs]
            else:
                load.blocks += blocks
                load.slots += slots


def _leading_nulls(table: Sequence[int]) -> int:
    """Return how many blocks at the front the engine left out: others have computed them, not this request."""
    return next((index for index, block in enumerate(table) if block != NULL_BLOCK), len(table))
