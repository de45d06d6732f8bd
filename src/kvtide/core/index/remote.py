"""An index that is somewhere else: at a node, with other engines.

The engine never waits for it longer than a moment. A look-up that is not answered then is asked for again in the next
step, and after a second deadline it is a miss. Without a node everything is a miss (I13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvtide.core.chain import Chain
from kvtide.core.groups import NULL_BLOCK, Group, Key
from kvtide.core.index import calls
from kvtide.core.index.calls import Found, Offer, Reserved, Run, Taken, Unkept
from kvtide.core.index.index import Fill, Grant, Granted, Index, Want
from kvtide.core.index.link import Link
from kvtide.core.ledger import STEP_S_MAX, Entry
from kvtide.core.match import Lease, Match, Piece
from kvtide.core.messages import Errand
from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.core.requests import Request

LOOK_UP_S = 0.002
"""So long a look-up may hold the engine up."""
LATE_S = 0.1
"""After so long without an answer a request goes on without. An answer that nobody has used is as good for so long."""
ASK_S = 10.0
"""After so long without an answer to a reservation the node is left, and tried again."""
ASKS_MAX = 1024
"""Reservations that are not answered. More are refused: the node does not keep up."""


@dataclass(slots=True, eq=False)
class Asked:
    """A reservation that is not answered."""

    wants: Sequence[Want]
    granted: Granted
    waited_s: float = 0.0

    def refuse(self, why: NotStored) -> None:
        """Tell that nothing comes of it."""
        self.granted([_refusal(want, why) for want in self.wants])


@dataclass(slots=True, eq=False)
class LookedUp:
    """A look-up of one request, until what it found is leased or not wanted any more."""

    id: int
    device_tokens: int
    num_tokens: int
    waited_s: float = 0.0
    """For the answer, or for somebody who takes the lease."""
    found: Found | None = None
    told: bool = False
    """The request knows the answer."""

    @property
    def leased(self) -> bool:
        """Whether it has found something, which is to be released."""
        return self.found is not None and self.found.lease is not None


@dataclass(slots=True)
class RemoteRun(Chain):
    """Blocks that a shared index has granted slots to."""

    id: int = 0


class RemoteIndex(Index):
    """Says what the engine wants, and takes the answers when they come."""

    def __init__(self, link: Link, groups: Sequence[Group], *, remember_blocks: int = 0) -> None:
        """`remember_blocks`: of about so many keys it is remembered that the node has them."""
        self._link = link
        self._groups = groups
        self._remember_blocks = remember_blocks
        self._life: int | None = None
        self._look_ups: dict[str, LookedUp] = {}
        """By request."""
        self._request_of: dict[int, str] = {}
        """The request of a look-up that is not answered."""
        self._asks: dict[int, Asked] = {}
        self._unkept: list[Chain] = []
        self._held: Counter[int] = Counter()
        """Leases and runs of each life: as long as there are any, copies may be under way."""
        self._known: set[tuple[int, Key]] = set()
        self._slots_ready = 0
        self._unsent = False
        self._is_silent = False
        """The node did not answer the last look-up at once, and has said nothing since: nobody is held up for it."""
        self._last_id = 0

    # ------------------------------------------------------------------ loading

    def look_up(self, request: Request, device_tokens: int, num_tokens: int, pays: Callable[[int], bool]) -> Match:
        """See `Index`. What is found is leased: it is released if nobody asks for the lease."""
        self._take()
        kept = request.reservation
        if (
            kept is not None
            and kept.lease is not None
            and kept.lease.life == self._life
            and (kept.device_tokens, kept.num_tokens) == (device_tokens, num_tokens)
        ):
            return kept  # it still holds: nothing has to be asked
        if self._life is None:
            return self._miss(request, device_tokens, num_tokens, NotLoaded.NODE_AWAY)
        asked = self._ask(request, device_tokens, num_tokens)
        left_s = 0.0 if asked.waited_s or self._is_silent else LOOK_UP_S
        while left_s > 0 and asked.id in self._request_of:  # what comes first may be something else
            left_s = self._link.wait(left_s)
            self._take()
        self._is_silent = asked.id in self._request_of
        if asked.found is not None:
            asked.told = True
            return self._match(request, asked, asked.found, pays)
        if asked.id not in self._request_of:  # the node went away while we waited
            return self._miss(request, device_tokens, num_tokens, NotLoaded.NODE_AWAY)
        late = self._miss(request, device_tokens, num_tokens, NotLoaded.NODE_LATE)
        return late if asked.waited_s >= LATE_S else replace(late, waits=True)

    def lease(self, match: Match) -> Lease:
        """See `Index`."""
        if match.lease is None:
            return Lease([])
        self._look_ups.pop(match.request_id, None)
        return match.lease

    def release(self, lease: Lease) -> None:
        """See `Index`."""
        if lease.id:
            self._say(lease.life, calls.Release(lease.id, lease.used))
            self._let_go(lease.life)

    def release_part(self, lease: Lease, keep: list[int]) -> None:
        """See `Index`. All that was leased is kept, as long as these: it is not worth a message."""

    def narrow(self, request: Request, match: Match, boundary: int) -> Match | None:
        """See `Index`. Only what is leased can be had."""
        pieces = []
        for index, group in enumerate(self._groups):
            first = max(group.first_needed(boundary), match.device_tokens // group.block_tokens)
            last = -(-boundary // group.block_tokens)
            piece = next((each for each in match.pieces if each.group == index), Piece(index, first, []))
            slots = piece.slots[first - piece.first_block : last - piece.first_block]
            if first < piece.first_block or len(slots) < last - first or not group.can_resume_at(boundary):
                return None
            if slots:
                pieces.append(Piece(index, first, slots))
        return replace(match, tokens=boundary - match.device_tokens, pieces=tuple(pieces))

    def wait(self, request: Request, match: Match) -> None:
        """See `Index`. Whoever waits is looked up again."""

    def use(self, match: Match) -> None:
        """See `Index`. The node hears of it when the lease is released: until then it is not evicted anyway."""
        if match.lease is not None:
            match.lease.used = True

    def drop(self, request: Request) -> None:
        """See `Index`."""
        asked = self._look_ups.pop(request.id, None)
        if asked is not None:
            self._request_of.pop(asked.id, None)
            self._return(asked.found)

    def _ask(self, request: Request, device_tokens: int, num_tokens: int) -> LookedUp:
        """Return the look-up of a request, a new one if there is none for what it needs."""
        asked = self._look_ups.get(request.id)
        if asked is not None and (asked.device_tokens, asked.num_tokens) == (device_tokens, num_tokens):
            return asked
        self.drop(request)
        self._last_id += 1
        asked = self._look_ups[request.id] = LookedUp(self._last_id, device_tokens, num_tokens)
        self._request_of[asked.id] = request.id
        firsts = [device_tokens // group.block_tokens for group in self._groups]
        self._send(calls.LookUp(asked.id, request.keys, device_tokens, num_tokens, firsts))
        self._flush()
        return asked

    def _match(self, request: Request, asked: LookedUp, found: Found, pays: Callable[[int], bool]) -> Match:
        match = Match(request.id, asked.device_tokens, found.tokens, found.pieces, found.missed, asked.num_tokens)
        if found.tokens and not pays(found.tokens):
            missed = {**found.missed, NotLoaded.BELOW_BREAK_EVEN: found.tokens}
            return replace(match, tokens=0, pieces=(), missed=missed)
        if found.lease is None:
            return match
        assert self._life is not None
        return replace(match, lease=Lease(match.slots, found.lease, self._life))

    def _miss(self, request: Request, device_tokens: int, num_tokens: int, why: NotLoaded) -> Match:
        return Match(request.id, device_tokens, 0, (), {why: num_tokens - device_tokens}, num_tokens)

    def _return(self, found: Found | None) -> None:
        """Release what was found in this life and is not wanted."""
        if found is not None and self._life is not None:
            self.release(Lease([], found.lease or 0, self._life))

    # ------------------------------------------------------------------ storing

    def reserve(self, wants: Sequence[Want], room_blocks: int, granted: Granted) -> None:
        """See `Index`."""
        if not wants:
            granted([])
        elif not self._is_here(self._life):
            Asked(wants, granted).refuse(NotStored.NODE_AWAY)
        elif len(self._asks) >= ASKS_MAX:
            Asked(wants, granted).refuse(NotStored.QUEUE_FULL)
        else:
            self._last_id += 1
            self._asks[self._last_id] = Asked(wants, granted)
            self._send(calls.Reserve(self._last_id, [_offer(want) for want in wants], max(0, room_blocks)))

    def settle(self, chains: Sequence[Chain], *, kept: bool) -> bool:
        """See `Index`. The chains of one transfer may be of several lives: then all of them come to nothing."""
        runs = [chain for chain in chains if isinstance(chain, RemoteRun)]
        ids = [run.id for run in runs if self._is_here(run.life)]
        known = len(ids) == len(runs)
        if ids:
            self._send(calls.Settle(ids, kept and known))
        for run in runs:
            if kept and known:
                self._remember(run.group, run.keys)
            self._let_go(run.life)
        return known

    def cut(self, run: Chain, keep_blocks: int) -> Chain:
        """See `Index`."""
        assert isinstance(run, RemoteRun)
        self._say(run.life, calls.Cut(run.id, keep_blocks))
        rest = run.part(keep_blocks, len(run), self._groups[run.group].block_tokens)
        del run.keys[keep_blocks:], run.blocks[keep_blocks:], run.slots[keep_blocks:]
        return rest

    def is_over(self, held: Lease | Chain) -> bool:
        """See `Index`."""
        return isinstance(held, Lease | RemoteRun) and not self._is_here(held.life)

    def has(self, group: int, key: Key) -> bool:
        """See `Index`. What the node has evicted since is not known here: it costs a hit, no more."""
        return (group, key) in self._known

    def is_arriving(self, group: int, key: Key) -> bool:
        """See `Index`."""
        return False

    def _grant(self, want: Want, taken: Taken) -> Grant:
        chain, size = want.chain, self._groups[want.chain.group].block_tokens
        grant = Grant(
            runs=[self._run(chain, run, size) for run in taken.runs],
            left=[chain.part(first, last, size) for first, last in taken.left],
            refused=Counter(taken.refused),
            gone=list(taken.gone),
            reached=taken.reached,
        )
        grant.blocks = sum(map(len, grant.runs))
        return grant

    def _run(self, chain: Chain, run: Run, size: int) -> RemoteRun:
        assert self._life is not None
        self._held[self._life] += 1
        part = chain.part(run.first, run.first + len(run.slots), size)
        slots = list(run.slots)
        return RemoteRun(
            part.group, part.keys, part.parent, part.end_tokens, part.blocks, slots, id=run.id, life=self._life
        )

    def _remember(self, group: int, keys: Sequence[Key]) -> None:
        if self._remember_blocks:
            if len(self._known) + len(keys) > self._remember_blocks:
                self._known.clear()
            self._known.update((group, key) for key in keys)

    # ------------------------------------------------------------------ steps

    def receive(self) -> list[Chain]:
        """See `Index`."""
        self._take()
        unkept, self._unkept = self._unkept, []
        return unkept

    def plan(self) -> tuple[Errand, ...]:
        """See `Index`. What is below host memory is the node's business."""
        self._flush()
        return ()

    def answered(self, errand: Entry) -> list[Chain]:
        """See `Index`. There are no errands."""
        return []

    def late(self, errand_id: int) -> None:
        """See `Index`. There are no errands."""

    def passed(self, seconds: float) -> None:
        """See `Index`."""
        for request_id, asked in list(self._look_ups.items()):
            asked.waited_s += seconds
            if asked.told and asked.waited_s >= LATE_S:  # by now the node may have more, or need the room
                del self._look_ups[request_id]
                self._return(asked.found)
        for ask in self._asks.values():
            ask.waited_s += min(seconds, STEP_S_MAX)  # nobody took answers while the engine paused
        if self._is_here(self._life) and any(ask.waited_s >= ASK_S for ask in self._asks.values()):
            self._link.hang_up()
            self._end_life(NotStored.NODE_LATE)

    def computed(self, tokens: int, seconds: float) -> None:
        """See `Index`."""

    def grow(self, slots: int) -> None:
        """See `Index`."""
        self._slots_ready = slots
        if self._is_here(self._life):
            self._send(calls.Ready(slots))

    def reset(self, *, below: bool) -> None:
        """See `Index`. Other engines may go on with the old weights: it is this one that leaves."""
        self._link.leave()
        self._end_life(NotStored.RESET)

    def clear(self) -> None:
        """See `Index`. Nothing of another life can be found."""

    @property
    def waiting(self) -> bool:
        """See `Index`."""
        return bool(self._unkept or self._unsent)

    @property
    def sinking(self) -> bool:
        """See `Index`."""
        return False

    def fill(self) -> Fill:
        """See `Index`. How full it is is known at the node."""
        return Fill(0, 0, 0, 0, searches=len(self._request_of))

    # ------------------------------------------------------------------ lives

    def _take(self) -> None:
        """Take what has come, and notice when the node has gone or come."""
        replies = self._link.receive()
        if replies or self._link.life != self._life:
            self._is_silent = False
        if self._link.life != self._life:
            self._end_life(NotStored.NODE_AWAY)
            self._life = self._link.life
            if self._life is not None:
                self._send(calls.Ready(self._slots_ready))
        for reply in replies:
            if isinstance(reply, Found):
                self._found(reply)
            elif isinstance(reply, Reserved):
                self._reserved(reply)
            elif isinstance(reply, Unkept):
                self._unkept.append(reply.chain)

    def _found(self, found: Found) -> None:
        assert self._life is not None
        if found.lease is not None:
            self._held[self._life] += 1
        request_id = self._request_of.pop(found.id, None)
        if request_id is None:
            self._return(found)  # nobody wants to know any more
        else:
            asked = self._look_ups[request_id]
            asked.found, asked.waited_s = found, 0.0

    def _reserved(self, reply: Reserved) -> None:
        ask = self._asks.pop(reply.id)
        ask.granted([self._grant(want, taken) for want, taken in zip(ask.wants, reply.taken, strict=True)])

    def _end_life(self, why: NotStored) -> None:
        """What was asked for will not be answered."""
        asks, self._asks = self._asks, {}
        looked_up, self._look_ups = self._look_ups, {}
        self._request_of.clear()
        self._known.clear()
        self._unsent = False
        life, self._life = self._life, None
        if life is not None:
            self._held[life] -= sum(asked.leased for asked in looked_up.values())
            self._drain(life)
        for ask in asks.values():
            ask.refuse(why)

    def _is_here(self, life: int | None) -> bool:
        """Whether something can be said about what was granted in some life. The next one knows nothing of it."""
        return life is not None and life == self._life == self._link.life

    def _send(self, call: calls.Call) -> None:
        self._link.send(call)
        self._unsent = True

    def _flush(self) -> None:
        self._link.flush()
        self._unsent = False

    def _say(self, life: int, call: calls.Call) -> None:
        if self._is_here(life):
            self._send(call)

    def _let_go(self, life: int) -> None:
        self._held[life] -= 1
        if life != self._life:
            self._drain(life)

    def _drain(self, life: int) -> None:
        """Tell that nothing is held any more of a life that is over."""
        if not self._held[life]:
            del self._held[life]
            self._link.drained(life)


def _offer(want: Want) -> Offer:
    chain = want.chain
    gone = [position for position, block in enumerate(chain.blocks) if block == NULL_BLOCK]
    return Offer(chain.group, chain.keys, chain.parent, chain.end_tokens, gone, want.needs_prefix, want.touch)


def _refusal(want: Want, why: NotStored) -> Grant:
    """Return the answer when there is nobody to ask."""
    gone = [position for position, block in enumerate(want.chain.blocks) if block == NULL_BLOCK]
    return Grant(refused=Counter({why: len(want.chain) - len(gone)}), gone=gone)
