"""What an engine asks a shared index for, to load: look-ups, their answers, and the leases that come with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvtide.core.groups import Group, common_boundary
from kvtide.core.index import calls
from kvtide.core.index.calls import Found
from kvtide.core.index.lives import Lives
from kvtide.core.match import Lease, Match, Piece, all_slots
from kvtide.core.reasons import NotLoaded
from kvtide.core.requests import Request

AGAIN_S = 0.002
"""One that waits for what is below is not asked for more often: an engine that has nothing else to do steps quickly."""
LATE_S = 0.1
"""After so long without an answer a request goes on without. An answer that nobody has used is as good for so long."""


@dataclass(slots=True, eq=False)
class LookedUp:
    """A look-up of one request, until what it found is leased or not wanted any more."""

    id: int
    device_tokens: int
    num_tokens: int
    waited_s: float = 0.0
    """For the answer, or for somebody who takes the lease."""
    found: Found | None = None
    waits: bool = False
    """The node brings something up from below host memory for it: it is asked again, step after step."""
    told: bool = False
    """The request knows the answer."""

    @property
    def leased(self) -> bool:
        """Whether it has found something, which is to be released."""
        return self.found is not None and self.found.lease is not None


class LookUps:
    """One for each request that has asked and has not taken what was found."""

    def __init__(self, lives: Lives, groups: Sequence[Group]) -> None:
        self._lives = lives
        self._groups = groups
        self._step = common_boundary(groups)
        self._asked: dict[str, LookedUp] = {}
        """By request."""
        self._request_of: dict[int, str] = {}
        """The request of a look-up that is not answered."""
        self._last_id = 0
        self._hears_time = False
        """Somebody tells how time passes."""
        self.computed = (0, 0.0)
        """Tokens and seconds of the last step that computed some, until the node has heard of it."""

    @property
    def unanswered(self) -> int:
        """How many wait for an answer."""
        return len(self._request_of)

    @property
    def at_rest(self) -> bool:
        """Whether nobody asks for anything, or has been told of what he has not taken."""
        return not (self._asked or self._request_of)

    def ask(self, request: Request, device_tokens: int, num_tokens: int) -> LookedUp:
        """Return the look-up of a request, a new one if there is none for what it needs."""
        asked = self._asked.get(request.id)
        if asked is not None and (asked.device_tokens, asked.num_tokens) == (device_tokens, num_tokens):
            return asked
        self.drop(request)
        self._last_id += 1
        asked = self._asked[request.id] = LookedUp(self._last_id, device_tokens, num_tokens)
        self._request_of[asked.id] = request.id
        # The key before the first block is its parent, which whoever brings it up from below has to know.
        firsts = [max(0, device_tokens // group.block_tokens - 1) for group in self._groups]
        self._lives.send(calls.LookUp(asked.id, request.keys, device_tokens, num_tokens, firsts, *self.computed))
        self.computed = (0, 0.0)
        self._lives.flush()
        return asked

    def is_unanswered(self, asked: LookedUp) -> bool:
        """Whether an answer may come."""
        return asked.id in self._request_of

    def answer(self, request: Request, asked: LookedUp, pays: Callable[[int], bool]) -> Match:
        """Return what was found. Without an answer the request waits, but not for long."""
        if asked.found is not None:
            asked.told = True
            return self._match(request, asked, asked.found, pays)
        device_tokens, num_tokens = asked.device_tokens, asked.num_tokens
        if self._asked.get(request.id) is not asked:  # the node went away while we waited
            return self.miss(request, device_tokens, num_tokens, NotLoaded.NODE_AWAY)
        if asked.id in self._request_of and asked.waited_s >= LATE_S:
            return self.miss(request, device_tokens, num_tokens, NotLoaded.NODE_LATE)
        why = NotLoaded.NOT_CACHED if asked.waits else NotLoaded.NODE_LATE
        return replace(self.miss(request, device_tokens, num_tokens, why), waits=True)

    def ask_again(self) -> None:
        """Ask what has become of the look-ups that wait for what is below host memory."""
        for request_id, asked in self._asked.items():
            due = asked.waited_s >= AGAIN_S or not self._hears_time
            if asked.waits and due and asked.id not in self._request_of:
                self._request_of[asked.id] = request_id
                asked.waited_s = 0.0
                self._lives.send(calls.Again(asked.id))

    def miss(self, request: Request, device_tokens: int, num_tokens: int, why: NotLoaded) -> Match:
        """Return that nothing was found."""
        return Match(request.id, device_tokens, 0, (), {why: num_tokens - device_tokens}, num_tokens)

    def lease(self, match: Match) -> Lease:
        """Return the lease of what was found: from now on it is kept by whoever has asked."""
        if match.lease is None:
            return Lease([])
        self._asked.pop(match.request_id, None)
        return match.lease

    def release(self, lease: Lease) -> None:
        """Return a lease."""
        if lease.id:
            self._lives.say(lease.life, calls.Release(lease.id, lease.used))
            self._lives.let_go(lease.life)

    def narrow(self, match: Match, boundary: int) -> Match | None:
        """Return what resuming at `boundary` needs. Only what is leased can be had."""
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

    def drop(self, request: Request) -> None:
        """A request does not want to know any more."""
        asked = self._asked.pop(request.id, None)
        if asked is not None:
            self._request_of.pop(asked.id, None)
            self._return(asked.found)
            if asked.waits and self._lives.now is not None:
                self._lives.say(self._lives.now, calls.Drop(asked.id))

    def found(self, found: Found) -> None:
        """Take an answer."""
        if found.lease is not None:
            self._lives.hold()
        request_id = self._request_of.pop(found.id, None)
        if request_id is not None:
            asked = self._asked[request_id]
            asked.waits, asked.waited_s = found.waits, 0.0
            asked.found = None if found.waits else found
        elif found.waits:
            self._lives.send(calls.Drop(found.id))  # nobody wants to know any more
        else:
            self._return(found)

    def passed(self, seconds: float) -> None:
        """So much time has passed."""
        self._hears_time = True
        for request_id, asked in list(self._asked.items()):
            asked.waited_s += seconds
            if asked.told and asked.waited_s >= LATE_S:  # by now the node may have more, or need the room
                del self._asked[request_id]
                self._return(asked.found)

    def end(self) -> int:
        """Forget all, at the end of a life; return how many leases nobody has taken."""
        asked, self._asked = self._asked, {}
        self._request_of.clear()
        return sum(each.leased for each in asked.values())

    def _match(self, request: Request, asked: LookedUp, found: Found, pays: Callable[[int], bool]) -> Match:
        id_, device_tokens, num_tokens = request.id, asked.device_tokens, asked.num_tokens
        missed = self._missed(asked, found)
        if found.tokens and not pays(found.tokens):
            return Match(id_, device_tokens, 0, (), {**missed, NotLoaded.BELOW_BREAK_EVEN: found.tokens}, num_tokens)
        lease = None
        if found.lease is not None:
            assert self._lives.now is not None
            lease = Lease(all_slots(found.pieces), found.lease, self._lives.now)
        return Match(id_, device_tokens, found.tokens, found.pieces, missed, num_tokens, lease=lease)

    def _missed(self, asked: LookedUp, found: Found) -> Mapping[NotLoaded, int]:
        """Return why not more was found. What the node is silent about it lacks (F4).

        It has forgotten the question, as when it was cleared meanwhile, or was sent no keys of the last tokens.
        """
        limit = (asked.num_tokens - 1) // self._step * self._step
        silent = limit - asked.device_tokens - found.tokens - sum(found.missed.values())
        if silent <= 0:  # as usual
            return found.missed
        return {**found.missed, NotLoaded.NOT_CACHED: found.missed.get(NotLoaded.NOT_CACHED, 0) + silent}

    def _return(self, found: Found | None) -> None:
        """Release what was found in this life and is not wanted."""
        if found is not None and self._lives.now is not None:
            self.release(Lease([], found.lease or 0, self._lives.now))
