"""An index that is somewhere else: at a node, with other engines.

The engine never waits for it longer than a moment. A look-up that is not answered then is asked for again in the next
step, and after a second deadline it is a miss. Without a node everything is a miss (I13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvtide.core.chain import Chain
from kvtide.core.groups import Group, Key
from kvtide.core.index.calls import Found, Reserved, Unkept
from kvtide.core.index.index import Fill, Granted, Index, Want
from kvtide.core.index.link import Link
from kvtide.core.index.lives import Lives
from kvtide.core.index.look_ups import LookUps
from kvtide.core.index.reservations import RemoteRun, Reservations
from kvtide.core.ledger import Entry
from kvtide.core.match import Lease, Match
from kvtide.core.messages import Errand, Pool
from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.core.requests import Request

LOOK_UP_S = 0.002
"""So long a look-up may hold the engine up."""


class RemoteIndex(Index):
    """Says what the engine wants, and takes the answers when they come."""

    def __init__(self, link: Link, groups: Sequence[Group], *, remember_blocks: int = 0) -> None:
        """`remember_blocks`: of about so many keys it is remembered that the node has them."""
        self._lives = Lives(link)
        self._look_ups = LookUps(self._lives, groups)
        self._reservations = Reservations(self._lives, groups, remember_blocks)
        self._unkept: list[Chain] = []
        self._is_silent = False
        """The node did not answer the last look-up at once, and has said nothing since: nobody is held up for it."""

    @property
    def pool(self) -> Pool | None:
        """See `Index`."""
        return self._lives.pool

    @property
    def answer_steps(self) -> int:
        """See `Index`. What a plan asks for is granted in the next one."""
        return 1

    # ------------------------------------------------------------------ loading

    def look_up(self, request: Request, device_tokens: int, num_tokens: int, pays: Callable[[int], bool]) -> Match:
        """See `Index`. What is found is leased: it is released if nobody asks for the lease."""
        lives = self._lives
        can_ask = lives.is_here(lives.now) and lives.has_memory
        if can_ask and self._kept(request, device_tokens, num_tokens) is None:
            self._look_ups.ask(request, device_tokens, num_tokens)  # what has come is taken while the node looks
        self._take()
        kept = self._kept(request, device_tokens, num_tokens)
        if kept is not None:
            return kept  # nothing has to be asked
        if lives.now is None:
            return self._look_ups.miss(request, device_tokens, num_tokens, NotLoaded.NODE_AWAY)
        if not lives.has_memory:  # nothing could be loaded, whatever is there
            late = self._look_ups.miss(request, device_tokens, num_tokens, NotLoaded.NODE_LATE)
            return replace(late, waits=lives.is_young)
        asked = self._look_ups.ask(request, device_tokens, num_tokens)
        left_s = 0.0 if asked.waits or asked.waited_s or self._is_silent else LOOK_UP_S
        while left_s > 0 and self._look_ups.is_unanswered(asked):  # what comes first may be something else
            left_s = lives.wait(left_s)
            self._take()
        self._is_silent = not asked.waits and self._look_ups.is_unanswered(asked)
        match = self._look_ups.answer(request, asked, pays)
        for group, first, slots in match.pieces:
            self._reservations.known.add(group, request.keys[group][first : first + len(slots)])
        return match

    def _kept(self, request: Request, device_tokens: int, num_tokens: int) -> Match | None:
        """Return what is reserved for a request, if it is what is looked for and still holds."""
        kept = request.reservation
        if kept is None or kept.lease is None or kept.lease.life != self._lives.now:
            return None
        return kept if (kept.device_tokens, kept.num_tokens) == (device_tokens, num_tokens) else None

    def lease(self, match: Match) -> Lease:
        """See `Index`."""
        return self._look_ups.lease(match)

    def release(self, lease: Lease) -> None:
        """See `Index`."""
        self._look_ups.release(lease)

    def release_part(self, lease: Lease, keep: list[int]) -> None:
        """See `Index`. All that was leased is kept, as long as these: it is not worth a message."""

    def narrow(self, request: Request, match: Match, boundary: int) -> Match | None:
        """See `Index`."""
        return self._look_ups.narrow(match, boundary)

    def wait(self, request: Request, match: Match) -> None:
        """See `Index`. Whoever waits is looked up again."""

    def use(self, match: Match) -> None:
        """See `Index`. The node hears of it when the lease is released: until then it is not evicted anyway."""
        if match.lease is not None:
            match.lease.used = True

    def drop(self, request: Request) -> None:
        """See `Index`."""
        self._look_ups.drop(request)

    # ------------------------------------------------------------------ storing

    def reserve(self, wants: Sequence[Want], room_blocks: int, granted: Granted) -> None:
        """See `Index`."""
        self._reservations.reserve(wants, room_blocks, granted)

    def settle(self, chains: Sequence[Chain], *, kept: bool) -> bool:
        """See `Index`."""
        return self._reservations.settle(chains, kept=kept)

    def cut(self, run: Chain, keep_blocks: int) -> Chain:
        """See `Index`."""
        return self._reservations.cut(run, keep_blocks)

    def is_over(self, held: Lease | Chain) -> bool:
        """See `Index`."""
        return isinstance(held, Lease | RemoteRun) and not self._lives.is_here(held.life)

    def has(self, group: int, key: Key) -> bool:
        """See `Index`. What the node has evicted since is not known here: it costs a hit, no more."""
        return self._reservations.known.has(group, key)

    def is_arriving(self, group: int, key: Key) -> bool:
        """See `Index`."""
        return False

    # ------------------------------------------------------------------ steps

    def receive(self) -> list[Chain]:
        """See `Index`."""
        self._take()
        unkept, self._unkept = self._unkept, []
        return unkept

    def plan(self) -> tuple[Errand, ...]:
        """See `Index`. What is below host memory is the node's business, which is asked once per step."""
        self._look_ups.ask_again()
        self._lives.flush()
        return ()

    def answered(self, errand: Entry) -> list[Chain]:
        """See `Index`. There are no errands."""
        return []

    def late(self, errand_id: int) -> None:
        """See `Index`. There are no errands."""

    def passed(self, seconds: float) -> None:
        """See `Index`."""
        self._lives.passed(seconds)
        self._look_ups.passed(seconds)
        if self._reservations.passed(seconds) and self._lives.is_here(self._lives.now):
            self._lives.hang_up()
            self._end_life(NotStored.NODE_LATE)

    def computed(self, tokens: int, seconds: float) -> None:
        """See `Index`. Goes with the next look-up."""
        if tokens > 0:
            self._look_ups.computed = tokens, seconds

    def grow(self, slots: int) -> None:
        """See `Index`. That is so in the present life; the next one begins with none."""
        self._lives.grow(slots)

    def reset(self, *, below: bool) -> None:
        """See `Index`. Other engines may go on with the old weights: it is this one that leaves."""
        self._lives.leave()
        self._end_life(NotStored.RESET)

    def clear(self) -> None:
        """See `Index`. Nothing of another life can be found."""

    @property
    def waiting(self) -> bool:
        """See `Index`."""
        return bool(self._unkept or self._lives.unsent)

    @property
    def sinking(self) -> bool:
        """See `Index`."""
        return False

    def fill(self) -> Fill:
        """See `Index`. How full it is is known at the node."""
        return Fill(0, 0, 0, 0, searches=self._look_ups.unanswered)

    # ------------------------------------------------------------------ lives

    def _take(self) -> None:
        """Take what has come, and notice when the node has gone or come."""
        replies = self._lives.receive()
        if replies or self._lives.has_changed:
            self._is_silent = False
        if self._lives.has_changed:
            self._end_life(NotStored.NODE_AWAY)
            self._lives.begin()
        for reply in replies:
            if isinstance(reply, Found):
                self._look_ups.found(reply)
            elif isinstance(reply, Reserved):
                self._reservations.reserved(reply)
            elif isinstance(reply, Unkept):
                self._reservations.known.remove(reply.chain.group, reply.chain.keys)
                self._unkept.append(reply.chain)

    def _end_life(self, why: NotStored) -> None:
        """What was asked for will not be answered."""
        asks = self._reservations.end()
        self._lives.end(held=self._look_ups.end())
        for ask in asks:
            ask.refuse(why)
