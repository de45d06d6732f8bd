"""A node in memory: shared indexes, and links of engines to them that come and go when a test says so.

    node = MemoryNode(config)
    link = MemoryLink(node)              # answers are there at once; later=True: when `let_in` is called
    index = RemoteIndex(link, groups)
    link.go_away(), link.come()          # a new life, at the same node
    node.restart()                       # another life of the node: nothing of before is there

Calls and answers are copied on their way, as a wire would do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtide.core import OffloadConfig
from kvtide.core.events import EventStream
from kvtide.core.index.calls import Call, Found, LookUp, Reply, Reserve, Reserved
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.shared import SharedIndex
from kvtide.core.ledger import Ledger
from kvtide.core.messages import Pool
from kvtide.core.metrics import Metrics

NOT_SENT = b"not sent"
"""In place of keys that nobody should look at."""


def local_index(config: OffloadConfig, slots_ready: int | None = None) -> LocalIndex:
    """Return an index, with all of its slots unless told otherwise."""
    metrics = Metrics()
    events = EventStream(config.events, metrics)
    return LocalIndex(config, Ledger(config.geometry.ranks, metrics), events, metrics, slots_ready)


def sent(call: Call) -> Call:
    """Return a call as it arrives: what is done to the engine's lists meanwhile does not change it."""
    if isinstance(call, LookUp):
        firsts = call.firsts or [0] * len(call.keys)
        pairs = zip(call.keys, firsts, strict=True)
        return replace(call, keys=[(NOT_SENT,) * first + tuple(keys[first:]) for keys, first in pairs])
    if isinstance(call, Reserve):
        offers = [replace(offer, keys=tuple(offer.keys), gone=tuple(offer.gone)) for offer in call.offers]
        return replace(call, offers=offers)
    return call


def answered(reply: Reply) -> Reply:
    """Return an answer as it arrives: no list of the index is in it."""
    if isinstance(reply, Found):
        return replace(reply, pieces=tuple(piece._replace(slots=list(piece.slots)) for piece in reply.pieces))
    if isinstance(reply, Reserved):
        taken = [
            replace(each, runs=[replace(run, slots=tuple(run.slots)) for run in each.runs]) for each in reply.taken
        ]
        return replace(reply, taken=taken)
    return reply


class Space:
    """A namespace of a node."""

    def __init__(self, config: OffloadConfig) -> None:
        self.local = local_index(config)
        self.shared = SharedIndex(self.local)
        self.memory: dict[tuple[int, int], Any] = {}
        """What is in its slots, by rank and slot, for tests that look at bytes."""


class MemoryNode:
    """Namespaces by name, and who is connected. A life is an owner at its namespace."""

    def __init__(self, config: OffloadConfig) -> None:
        self._config = config
        self._spaces: dict[str, Space] = {}
        self.links: dict[int, MemoryLink] = {}
        """By life, as long as it is connected."""
        self.link_of: dict[int, MemoryLink] = {}
        """By life."""
        self.space_of: dict[int, Space] = {}
        """By life, also after its end: what an engine holds it holds there."""
        self._last_life = 0

    def attach(self, link: MemoryLink) -> int:
        """Begin a life."""
        self._last_life += 1
        space = self._spaces.setdefault(link.name, Space(self._config))
        space.shared.attach(self._last_life)
        self.space_of[self._last_life] = space
        self.links[self._last_life] = self.link_of[self._last_life] = link
        return self._last_life

    def close(self, life: int) -> None:
        """Hear nothing more of a life."""
        del self.links[life]
        self.space_of[life].shared.closed(life)

    def handle(self, life: int, call: Call) -> None:
        """Do what a life asks for, and send what there is to say."""
        reply = self.space_of[life].shared.handle(life, call)
        if reply is not None:
            self.links[life].arrive(answered(reply))
        self.tell()

    def end(self, life: int) -> None:
        """A life holds nothing any more."""
        self.space_of[life].shared.ended(life)
        self.tell()

    def tell(self) -> None:
        """Send notices to whom they concern."""
        for space in {id(self.space_of[life]): self.space_of[life] for life in self.links}.values():
            for owner, notice in space.shared.take_notices():
                self.links[owner].arrive(notice)

    def restart(self) -> None:
        """Die, and come back empty."""
        links = list(self.links.values())
        for link in links:
            link.go_away()
        self._spaces.clear()
        for link in links:
            link.come()


class MemoryLink:
    """See `Link`. Records what was sent in which life, and which lives were said to be drained."""

    def __init__(self, node: MemoryNode, *, later: bool = False, name: str = "model") -> None:
        self.node = node
        self.later = later
        self.name = name
        self.life: int | None = None
        self.sent: list[tuple[int, Call]] = []
        self.lives_drained: list[int] = []
        self.waited_s = 0.0
        self._out: list[Call] = []
        self._held_back: list[Reply] = []
        self.hangs = False
        """What is answered does not come."""
        self._in: list[Reply] = []
        self._comes = True

    @property
    def space(self) -> Space:
        """Where its blocks are, or were when it was connected last."""
        return self.node.space_of[max(life for life, link in self.node.link_of.items() if link is self)]

    def check_at_rest(self) -> None:
        """Check that nothing is held at the node, and that each life that is over was drained, once."""
        for life, link in self.node.link_of.items():
            if link is self:
                owner = self.node.space_of[life].shared._owners.get(life)
                assert (owner is None) == (life != self.life), f"life {life} is not drained, or too early"
                assert owner is None or not (owner.leases or owner.runs), f"life {life} holds something"
        assert len(set(self.lives_drained)) == len(self.lives_drained)

    @property
    def pool(self) -> Pool | None:
        """See `Link`."""
        return None if self.life is None else Pool(self.life, "memory", self.life)

    @property
    def slots(self) -> int:
        """See `Link`."""
        return 0 if self.life is None else self.node.space_of[self.life].local.host.slots

    def send(self, call: Call) -> None:
        """See `Link`."""
        assert self.life is not None, f"{call} is sent to nobody"
        self.sent.append((self.life, call))
        self._out.append(sent(call))

    def flush(self) -> None:
        """See `Link`."""
        out, self._out = self._out, []
        for call in out:
            assert self.life is not None
            self.node.handle(self.life, call)

    def receive(self) -> list[Reply]:
        """See `Link`."""
        if self._comes and self.life is None:
            self.life = self.node.attach(self)
        self._comes = False
        replies, self._in = self._in, []
        return replies

    def wait(self, seconds: float) -> float:
        """See `Link`."""
        self.waited_s += seconds
        return 0.0

    def let_one_in(self, seconds: float) -> float:
        """Instead of `wait`: let one thing come that is under way, in half of the time."""
        self._in.append(self._held_back.pop(0))
        return seconds / 2

    def leave(self) -> None:
        """See `Link`."""
        self.name += "'"
        if self.life is not None:
            self.go_away()
            self.come()

    def hang_up(self) -> None:
        """See `Link`."""
        if self.life is not None:
            self.go_away()
            self.come()

    def drained(self, life: int) -> None:
        """See `Link`."""
        assert life != self.life, f"life {life} is not over"
        self.lives_drained.append(life)
        self.node.end(life)

    def arrive(self, reply: Reply) -> None:
        """Take an answer of the node."""
        (self._held_back if self.later else self._in).append(reply)

    def let_in(self) -> None:
        """Let the engine have what has been answered by now."""
        if not self.hangs:
            self._in += self._held_back
            self._held_back = []

    def come(self) -> None:
        """Begin a life, when the engine looks next."""
        self._comes = True

    def go_away(self) -> None:
        """End a life. What is on its way is lost."""
        if self.life is not None:
            self.node.close(self.life)
        self.life, self._comes = None, False
        self._out, self._held_back, self._in = [], [], []
