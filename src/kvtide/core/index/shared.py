"""An index that several engines use. What an engine holds is known by its owner, and survives nobody.

An owner is one life of an engine. When its connection closes, what it holds is in quarantine: its processes may still
read and write the slots. Only when they have all ended is it released (I10, I11).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from kvtide.core.chain import Chain
from kvtide.core.groups import NULL_BLOCK
from kvtide.core.index import calls
from kvtide.core.index.calls import Call, Found, Offer, Reply, Reserved, Run, Taken, Unkept
from kvtide.core.index.counted import Counted
from kvtide.core.index.index import Grant, Want
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.owner import Owner
from kvtide.core.index.sound import check_chains, check_look_up, check_offers, check_search
from kvtide.core.index.spare import SpareSlots
from kvtide.core.index.waiting import WaitingLookUps
from kvtide.core.ledger import Entry, FetchEntry
from kvtide.core.match import Match
from kvtide.core.messages import Errand, Name, Report
from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.core.requests import Request

LEASED_QUARTERS_MAX = 3
"""Of its slots: so much one engine may lease. An engine that does not return leases must not keep all others from
storing. An engine that is well keeps what its device is about to load.
"""
_HAS_BYTES = NULL_BLOCK + 1
"""In place of a device block: which one it is is the engine's business."""


class SharedIndex:
    """One namespace, and who holds what of it. One engine may lease so many quarters of its slots."""

    def __init__(
        self, index: LocalIndex, *, leased_quarters_max: int = LEASED_QUARTERS_MAX, spare_slots: int | None = None
    ) -> None:
        self._index = index
        self._leased_quarters_max = leased_quarters_max
        self._spare = SpareSlots(index, spare_slots)
        self._owners: dict[int, Owner] = {}
        self._waiting = WaitingLookUps(index)
        self._writing: dict[int, int] = {}
        """The owner that may write to a slot."""
        self._relying: dict[int, dict[int, None]] = {}
        """Owners that have the bytes of a slot that somebody else writes, or that is brought up from below."""
        self._notices: list[tuple[int, Unkept]] = []
        self._last_id = 0
        self.counted = Counted()
        self.calls_unknown = 0
        """Calls about leases and runs that are not there, or of owners that are not: of another life, or twice."""

    # ------------------------------------------------------------------ owners

    def attach(self, owner: int, slots_ready: int = 0) -> None:
        """An engine begins to use the index."""
        self._owners[owner] = Owner(slots_ready)

    def closed(self, owner: int) -> None:
        """Nothing more will be heard of an owner. What it holds stays until `ended`."""
        self._owners[owner].closed = True
        self._waiting.drop_all_of(owner)  # it knows of no slot of these

    def ended(self, owner: int) -> None:
        """No process of an owner lives any more, or none copies: release what it held."""
        gone = self._owners.pop(owner)
        self._waiting.drop_all_of(owner)
        for lease, _ in gone.leases.values():
            self._index.release(lease)
        for run in list(gone.runs.values()):
            self._settle(run, kept=False)

    def grow(self, slots: int) -> None:
        """So many slots can be used by now."""
        self._index.grow(slots)

    def clear(self) -> int:
        """Forget every key; return how many blocks could be found.

        Leases stay what they are (I11). What is being written comes to nothing, and is asked of nobody else: its
        slots are free when their writers have said what became of them, or have ended (I10).
        """
        blocks = self._index.host.num_cached
        self._index.reset(below=True)
        self._index.ledger.abandon()
        self._waiting.drop_all()
        self._index.clear()
        self._relying.clear()
        for owner in self._owners.values():
            owner.leases = {id_: (lease, None) for id_, (lease, _) in owner.leases.items()}
            owner.void.update(owner.runs)
        self.counted.clears += 1
        return blocks

    def rest(self) -> bool:
        """Nobody asks for anything just now: make some room. Returns whether there is more to do."""
        return self._spare.make()

    @property
    def quarantined_slots(self) -> int:
        """Slots that owners of which nothing is heard any more may still read or write."""
        return sum(owner.leased_slots + owner.writing_slots for owner in self._owners.values() if owner.closed)

    def counts(self) -> dict[str, int]:
        """Return how many slots are what, and what it was asked."""
        host, owners = self._index.host, self._owners.values()
        return {
            "cached": host.num_cached,
            "free": host.num_free,
            "leased": sum(owner.leased_slots for owner in owners),
            "writing": len(self._writing),
            "quarantined": self.quarantined_slots,
            "waiting": len(self._waiting),
            "calls_unknown": self.calls_unknown,
        }

    def held(self, owner: int) -> dict[str, int]:
        """Return how many slots an owner may read, and write."""
        holder = self._owners[owner]
        return {"leased": holder.leased_slots, "writing": holder.writing_slots}

    # ------------------------------------------------------------------ below host memory

    def plan(self, *, sinks: bool = True) -> tuple[Errand, ...]:
        """Return what is to be done below host memory, with every part; from now on answers are expected.

        Without `sinks`, these wait.
        """
        return self._index.plan(sinks=sinks)

    def report(self, report: Report) -> None:
        """Take what one part has answered, in the place of a rank."""
        settled = self._index.ledger.settle(report)
        for fetch_id in report.late:
            self._index.late(fetch_id)
        for errand in settled:
            self._answered(errand)

    def passed(self, seconds: float) -> None:
        """So much time has passed: nobody waits for ever for a tier, or for an engine, that does not answer."""
        self._waiting.passed(seconds)
        for errand in self._index.ledger.passed(seconds):
            self._index.late(errand.id)

    @property
    def waits(self) -> bool:
        """Whether there are look-ups that are not over, or not asked for since."""
        return bool(len(self._waiting))

    @property
    def has_tiers(self) -> bool:
        """Whether anything is below."""
        return self._index.below.has_tiers

    @property
    def sinking_blocks(self) -> int:
        """Blocks that the tiers should have, and do not have yet."""
        return self._index.below.sinking_blocks

    def drain(self) -> None:
        """Nothing is stored any more: let everything sink that the tiers should have."""
        self._index.below.drain()

    def _answered(self, errand: Entry) -> None:
        """Whoever relied on what was brought up and has not come may store it (I14)."""
        brought = zip(errand.names, errand.slots, strict=True) if isinstance(errand, FetchEntry) else ()
        relying: dict[Name, Iterable[int]] = {name: self._relying.pop(slot, ()) for name, slot in brought}
        for chain in self._index.answered(errand):
            for owner in relying[chain.group, chain.keys[0]]:
                self._notices.append((owner, Unkept(chain)))

    # ------------------------------------------------------------------ calls

    def handle(self, owner: int, call: Call) -> Reply | None:
        """Do what an engine asks for; return the answer, if there is one."""
        holder = self._owners.get(owner)
        if holder is None or holder.closed:
            self.calls_unknown += 1
            return None
        match call:
            case calls.LookUp():
                return self._look_up(owner, call)
            case calls.Again():
                return self._look_again(owner, call.id)
            case calls.Reserve():
                return self._reserve(owner, call)
        self._hear(owner, holder, call)
        return None

    def _hear(self, owner: int, holder: Owner, call: Call) -> None:
        """Do what needs no answer."""
        match call:
            case calls.Drop():
                self._waiting.drop((owner, call.id))
            case calls.Settle():
                for id_ in call.runs:
                    self._settle_one(holder, id_, kept=call.kept)
            case calls.Release():
                self._release(holder, call)
            case calls.Cut():
                self._cut(holder, call)
            case calls.Ready():
                holder.slots_ready = call.slots

    def take_notices(self) -> list[tuple[int, Unkept]]:
        """Return what owners have to be told, since the last time."""
        notices, self._notices = self._notices, []
        return [
            (owner, notice) for owner, notice in notices if owner in self._owners and not self._owners[owner].closed
        ]

    # ------------------------------------------------------------------ loading

    def _look_up(self, owner: int, call: calls.LookUp) -> Found:
        sizes = self._index.block_tokens
        check_look_up(call, sizes)
        self._index.computed(call.computed_tokens, call.computed_s)
        request = Request("", call.keys, [[]] * len(sizes))
        # There is nothing behind the last key, whatever number somebody sends: looking costs as much as the message.
        known = max(len(keys) * size for keys, size in zip(call.keys, sizes, strict=True))
        num_tokens = min(call.num_tokens, max(known, call.device_tokens) + max(sizes))
        match = self._index.look_up(request, call.device_tokens, num_tokens, lambda _: True)
        if match.waits:
            check_search(call)
        if self._waiting.begin((owner, call.id), request, match):
            return self._look_again(owner, call.id)
        return self._found(owner, call.id, match)

    def _look_again(self, owner: int, id_: int) -> Found:
        name = owner, id_
        if not self._waiting.knows(name):
            self.calls_unknown += 1
            return Found(id_)
        match = self._waiting.result(name)
        if match is None:
            return Found(id_, waits=True)
        found = self._found(owner, id_, match)
        self._waiting.drop(name)
        return found

    def _found(self, owner: int, id_: int, match: Match) -> Found:
        found = self._leased(self._owners[owner], id_, match)
        self.counted.looked_up(match.num_tokens - match.device_tokens, found)
        return found

    def _leased(self, holder: Owner, id_: int, match: Match) -> Found:
        """Lease what was found, and say so."""
        if not match.pieces:
            return Found(id_, match.tokens, (), match.missed)
        if not self._all_ready(holder, match):
            return Found(id_, 0, (), {NotLoaded.NOT_CACHED: match.num_tokens - match.device_tokens})
        if not holder.may_lease(match.slots, self._index.host.slots_max * self._leased_quarters_max // 4):
            return Found(id_, 0, (), {**match.missed, NotLoaded.LEASES_FULL: match.tokens})
        self._last_id += 1
        holder.leases[self._last_id] = self._index.lease(match), match
        return Found(id_, match.tokens, match.pieces, match.missed, self._last_id)

    def _all_ready(self, holder: Owner, match: Match) -> bool:
        """Whether an engine can use what was found. While it pins its memory, it cannot use all."""
        return holder.slots_ready >= self._index.host.slots or max(match.slots) < holder.slots_ready

    def _release(self, holder: Owner, call: calls.Release) -> None:
        held = holder.give_back(call.lease)
        if held is None:
            self.calls_unknown += 1
            return
        lease, match = held
        if call.used and match is not None:
            self._index.use(match)
        self._index.release(lease)

    # ------------------------------------------------------------------ storing

    def _reserve(self, owner: int, call: calls.Reserve) -> Reserved:
        check_offers(call.offers, self._index.block_tokens)
        if self._are_known(owner, call.offers):  # as usual when a request ends that has loaded
            return Reserved(call.id, [Taken([], [], {}, [], len(offer.keys)) for offer in call.offers])
        check_chains(call.offers)
        wants = list(map(_want, call.offers))
        taken: list[Taken] = []
        room = call.room_blocks
        if self._owners[owner].slots_ready < self._index.host.slots:
            room = min(room, self._index.host.num_free)  # nothing is evicted for who may not be able to use the slot

        def granted(grants: list[Grant]) -> None:
            if room < call.room_blocks:
                _refuse_left(grants)
            taken.extend(self._take(owner, offer, grant) for offer, grant in zip(call.offers, grants, strict=True))

        if self._writing or self._index.below.rising:
            for want in wants:
                self._rely(owner, self._index.host.slots_of(want.chain.group, want.chain.keys))
        self._index.reserve(wants, room, granted)
        self.counted.reserved(taken)
        return Reserved(call.id, taken)

    def _take(self, owner: int, offer: Offer, grant: Grant) -> Taken:
        """Note who writes what was granted. Slots that this engine cannot use yet are given back."""
        holder, runs = self._owners[owner], []
        refused, reached = dict(grant.refused), grant.reached
        for run in grant.runs:
            first = (run.end_tokens - offer.end_tokens) // self._index.block_tokens[run.group]
            if max(run.slots) >= holder.slots_ready:
                self._index.settle([run], kept=False)
                refused[NotStored.HOST_FULL] = refused.get(NotStored.HOST_FULL, 0) + len(run)
                reached = min(reached, first)
                continue
            self._last_id += 1
            holder.runs[self._last_id] = run
            self._writing.update(dict.fromkeys(run.slots, owner))
            runs.append(Run(self._last_id, first, run.slots))
        size = self._index.block_tokens[offer.group]
        left = [((chain.end_tokens - offer.end_tokens) // size, len(chain)) for chain in grant.left]
        spans = [(first, first + length) for first, length in left]
        return Taken(runs, spans, refused, grant.gone, reached)

    def _are_known(self, owner: int, offers: Sequence[Offer]) -> bool:
        """Tell that prefixes were in use until now, if nothing of them is lacking; return whether that is so."""
        host = self._index.host
        found = [host.find(offer.group, offer.keys) for offer in offers if offer.touch]
        if len(found) < len(offers) or any(None in rest for _, rest in found):
            return False
        host.tick()
        for offer, (leading, rest) in zip(offers, found, strict=True):
            host.renew(offer.group, leading, rest, offer.end_tokens)
            self._index.below.rely_on(rest)
            self._rely(owner, rest)
        return True

    def _rely(self, owner: int, slots: Sequence[int | None]) -> None:
        """Remember that an engine has the bytes of what somebody else writes, or of what is on its way up."""
        of_others = [slot for slot in self._writing.keys() & slots if self._writing[slot] != owner]
        for slot in (*of_others, *(self._index.below.rising & slots)):
            self._relying.setdefault(slot, {})[owner] = None

    def _cut(self, holder: Owner, call: calls.Cut) -> None:
        run = holder.runs.get(call.run)
        if run is None or not 0 < call.keep_blocks < len(run):
            self.calls_unknown += 1
            return
        self._over(self._index.cut(run, call.keep_blocks), kept=False)

    def _settle_one(self, holder: Owner, id_: int, *, kept: bool) -> None:
        """An owner says what became of a run."""
        run = holder.runs.pop(id_, None)
        if run is None:
            self.calls_unknown += 1
            return
        if id_ in holder.void:
            holder.void.remove(id_)
            kept = False
        self._settle(run, kept=kept)
        self.counted.stored_blocks += len(run) * kept

    def _settle(self, run: Chain, *, kept: bool) -> None:
        self._index.settle([run], kept=kept)
        self._over(run, kept=kept)

    def _over(self, run: Chain, *, kept: bool) -> None:
        """Nobody writes these any more. If they did not come, whoever has the bytes may store them (I14)."""
        for slot in run.slots:
            self._writing.pop(slot, None)
        if not self._relying:
            return  # as usual
        relying = [tuple(self._relying.pop(slot, ())) for slot in run.slots]
        if kept:
            return
        size, first = self._index.block_tokens[run.group], 0
        for owners, alike in groupby(relying):  # not a message for each block: there may be thousands
            last = first + len(list(alike))
            self._notices += [(owner, Unkept(run.part(first, last, size))) for owner in owners]
            first = last


def _refuse_left(grants: list[Grant]) -> None:
    """There is no room, and asking again is of no use."""
    for grant in grants:
        if grant.left:
            grant.refused[NotStored.HOST_FULL] += sum(map(len, grant.left))
            grant.left = []


def _want(offer: Offer) -> Want:
    blocks = [_HAS_BYTES] * len(offer.keys)
    for position in offer.gone:
        blocks[position] = NULL_BLOCK
    chain = Chain(offer.group, list(offer.keys), offer.parent, offer.end_tokens, blocks)
    return Want(chain, offer.needs_prefix, offer.touch)
