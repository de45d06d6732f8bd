"""What an engine asks a shared index for, to store: slots, and what becomes of the blocks that were granted some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvtide.core.chain import Chain
from kvtide.core.groups import NULL_BLOCK, Group, Key
from kvtide.core.index import calls
from kvtide.core.index.calls import Offer, Reserved, Run, Taken
from kvtide.core.index.index import Grant, Granted, Want
from kvtide.core.index.known import KnownKeys
from kvtide.core.index.lives import Lives
from kvtide.core.ledger import STEP_S_MAX
from kvtide.core.reasons import NotStored

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


@dataclass(slots=True)
class RemoteRun(Chain):
    """Blocks that a shared index has granted slots to."""

    id: int = 0


class Reservations:
    """Those that are not answered, and which keys the node is known to have."""

    def __init__(self, lives: Lives, groups: Sequence[Group], remember_blocks: int) -> None:
        """`remember_blocks`: of about so many keys it is remembered that the node has them."""
        self._lives = lives
        self._groups = groups
        self._asks: dict[int, Asked] = {}
        self.known = KnownKeys(len(groups), remember_blocks)
        """What the node has, or somebody writes."""
        self._last_id = 0

    @property
    def at_rest(self) -> bool:
        """Whether all are answered."""
        return not self._asks

    def reserve(self, wants: Sequence[Want], room_blocks: int, granted: Granted) -> None:
        """Ask for slots. Calls `granted` once, at the latest when the life ends."""
        if not wants:
            granted([])
        elif not self._lives.is_here(self._lives.now):
            Asked(wants, granted).refuse(NotStored.NODE_AWAY)
        elif not self._lives.has_memory:  # the node would evict something for it, in vain
            Asked(wants, granted).refuse(NotStored.NODE_LATE)
        elif len(self._asks) >= ASKS_MAX or len(wants) > calls.OFFERS_MAX:
            Asked(wants, granted).refuse(NotStored.QUEUE_FULL)
        else:
            self._last_id += 1
            self._asks[self._last_id] = Asked(wants, granted)
            self._lives.send(calls.Reserve(self._last_id, [_offer(want) for want in wants], max(0, room_blocks)))

    def reserved(self, reply: Reserved) -> None:
        """Take an answer."""
        ask = self._asks.pop(reply.id)
        ask.granted([self._grant(want, taken) for want, taken in zip(ask.wants, reply.taken, strict=True)])

    def settle(self, chains: Sequence[Chain], *, kept: bool) -> bool:
        """Commit or abandon. The chains of one transfer may be of several lives: then all of them come to nothing."""
        runs = [chain for chain in chains if isinstance(chain, RemoteRun)]
        ids = [run.id for run in runs if self._lives.is_here(run.life)]
        known = len(ids) == len(runs)
        if ids:
            self._lives.send(calls.Settle(ids, kept and known))
        for run in runs:
            if kept and known:
                self.known.add(run.group, run.keys)
            else:
                self.known.remove(run.group, run.keys)
            self._lives.let_go(run.life)
        return known

    def cut(self, run: Chain, keep_blocks: int) -> Chain:
        """Abandon what a run has behind its first blocks; return that."""
        assert isinstance(run, RemoteRun)
        self._lives.say(run.life, calls.Cut(run.id, keep_blocks))
        rest = run.part(keep_blocks, len(run), self._groups[run.group].block_tokens)
        del run.keys[keep_blocks:], run.blocks[keep_blocks:], run.slots[keep_blocks:]
        return rest

    def passed(self, seconds: float) -> bool:
        """So much time has passed. Returns whether some answer is overdue."""
        for ask in self._asks.values():
            ask.waited_s += min(seconds, STEP_S_MAX)  # nobody took answers while the engine paused
        return any(ask.waited_s >= ASK_S for ask in self._asks.values())

    def end(self) -> list[Asked]:
        """Forget all, at the end of a life; return what was not answered."""
        asks, self._asks = self._asks, {}
        self.known.clear()
        return list(asks.values())

    def _grant(self, want: Want, taken: Taken) -> Grant:
        chain, size = want.chain, self._groups[want.chain.group].block_tokens
        self.known.add(chain.group, _not_lacking(chain, taken))
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
        part = chain.part(run.first, run.first + len(run.slots), size)
        slots, life = list(run.slots), self._lives.hold()
        return RemoteRun(part.group, part.keys, part.parent, part.end_tokens, part.blocks, slots, id=run.id, life=life)


def _offer(want: Want) -> Offer:
    chain = want.chain
    gone = [position for position, block in enumerate(chain.blocks) if block == NULL_BLOCK]
    return Offer(chain.group, chain.keys, chain.parent, chain.end_tokens, gone, want.needs_prefix, want.touch)


def _refusal(want: Want, why: NotStored) -> Grant:
    """Return the answer when there is nobody to ask."""
    gone = [position for position, block in enumerate(want.chain.blocks) if block == NULL_BLOCK]
    return Grant(refused=Counter({why: len(want.chain) - len(gone)}), gone=gone)


def _not_lacking(chain: Chain, taken: Taken) -> list[Key]:
    """Return the keys that the node has, or somebody writes. Which it has refused it does not say."""
    if taken.refused:
        return []
    lacking = set(taken.gone)
    for run in taken.runs:
        lacking.update(range(run.first, run.first + len(run.slots)))
    for first, last in taken.left:
        lacking.update(range(first, last))
    if not lacking:
        return chain.keys  # as usual when a request ends that has loaded
    return [key for position, key in enumerate(chain.keys) if position not in lacking]
