"""Everything that concerns the tiers below host memory, as the rest of the core sees it: one object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.core.below.fetches import Fetches
from kvtide.core.below.searches import Searches
from kvtide.core.below.sinks import Sinks
from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import ClearEntry, Entry, ErrandEntry, FetchEntry, Ledger, LookupEntry, SinkEntry
from kvtide.core.loading.match import Match
from kvtide.core.messages import Errand
from kvtide.core.metrics import Metrics
from kvtide.core.requests import Request


class Below:
    """Requests search for what the host lacks, fetches bring it up, and blocks of the host sink.

    Without tiers nobody searches, nothing sinks, and there are no errands.
    """

    def __init__(self, config: OffloadConfig, host: HostPool, ledger: Ledger, metrics: Metrics) -> None:
        self._has_tiers = config.below is not None
        self._ledger = ledger
        self._break_even = FetchBreakEven()
        self._fetches = Fetches(config.geometry.groups, host, ledger, metrics)
        self._searches = Searches(config, host, self._fetches, self._break_even, ledger=ledger, metrics=metrics)
        self._sinks = Sinks(config.below, host, ledger, metrics)
        self._clear_due = False
        """The next plan tells the tiers to forget everything."""

    # ------------------------------------------------------------------ requests

    def matched(self, request: Request, match: Match) -> Match:
        """Return what a request is told: whether it waits for more than `match`, and what it waited for in vain."""
        return self._searches.matched(request, match)

    def reserved(self, request: Request, match: Match) -> None:
        """What `match` found is pinned: the request waits from now on, if it says so."""
        self._searches.reserved(request, match)

    def drop(self, request: Request) -> None:
        """A request goes on without what is below, or is over."""
        self._searches.drop(request)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""
        self._break_even.computed(tokens, seconds)

    # ------------------------------------------------------------------ blocks of the host

    def stored(self, chain: Chain) -> None:
        """A chain is on the host now."""
        self._sinks.stored(chain)

    def used(self, slots: Sequence[int]) -> None:
        """Slots were loaded from."""
        self._sinks.used(slots)

    def rely_on(self, slots: Iterable[int | None]) -> None:
        """Blocks that were computed are not stored, because the host has them or is about to."""
        self._fetches.rely_on(slots)

    # ------------------------------------------------------------------ steps

    def plan(self) -> tuple[Errand, ...]:
        """Return what the workers have to do; from now on answers are expected.

        A clear comes first: what is behind it, in this plan or a later one, is of the new weights (F9).
        """
        errands: list[ErrandEntry] = [ClearEntry(self._ledger.next_id())] if self._clear_due else []
        self._clear_due = False
        errands += [*self._searches.plan(), *self._sinks.plan()]
        for errand in errands:
            self._ledger.start(errand)
        return tuple(errand.as_errand() for errand in errands)

    def settle(self, errand: Entry) -> list[Chain]:
        """Every rank has answered. Returns what somebody relied on and has not come: it has to be stored after all."""
        if isinstance(errand, LookupEntry):
            self._searches.looked_up(errand)
        elif isinstance(errand, SinkEntry):
            self._sinks.settle(errand)
        elif isinstance(errand, FetchEntry):
            came_up, unkept = self._fetches.settle(errand)
            self._sinks.came_up(came_up)
            self._searches.fetched(errand, came_up)
            return unkept
        return []

    def late(self, fetch_id: int) -> None:
        """A tier is past its deadline: nobody waits for this fetch any longer (F18)."""
        fetch = self._ledger.get(fetch_id)
        if isinstance(fetch, FetchEntry):
            self._searches.late(fetch)

    def overdue(self, errand: Entry) -> None:
        """Some rank does not answer at all."""
        if isinstance(errand, FetchEntry):
            self._searches.late(errand)
        elif isinstance(errand, LookupEntry):
            self._searches.give_up(errand.search)

    def reset(self, *, clear: bool) -> None:
        """Forget what was going to be done. `clear`: what is in the tiers is of no use any more."""
        self._searches.reset()
        self._sinks.reset()
        self._clear_due |= clear and self._has_tiers

    @property
    def waiting(self) -> bool:
        """Whether the next plan will have something, apart from what waits to sink."""
        return self._clear_due or self._searches.waiting

    @property
    def searches(self) -> int:
        """Requests that wait."""
        return len(self._searches)

    @property
    def sink_queue_blocks(self) -> int:
        """Blocks that wait to sink."""
        return self._sinks.waiting_blocks
