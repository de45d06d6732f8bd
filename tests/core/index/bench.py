"""An index of any kind, asked as the engine half of the core does, with steps that go by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtide.core import Geometry, Group, Match, OffloadConfig
from kvtide.core.chain import Chain
from kvtide.core.index.index import Grant, Index, Want
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.match import Lease
from kvtide.core.messages import Pool
from kvtide.core.requests import Request
from tests.memory_node import MemoryLink, MemoryNode, local_index
from tests.support import keys_of, text

SIZE = 4
KINDS = ("local", "remote, answered at once", "remote, answered a step later")
STEPS_MAX = 10


def config_of(groups: Sequence[Group], slots: int, **options: object) -> OffloadConfig:
    """Return a configuration of `slots` host slots."""
    geometry = Geometry(groups=tuple(groups), block_bytes=1, device_blocks=64, step_tokens=16)
    return OffloadConfig.build(geometry, {"host_per_rank": slots, **options})


class Bench:
    """One engine's index."""

    def __init__(
        self, index: Index, groups: Sequence[Group], link: MemoryLink | None = None, *, slots: int = 0
    ) -> None:
        """`slots`: so many its ranks can use as soon as they hear of a life."""
        self.slots = slots
        self._mapped: Pool | None = None
        self.index = index
        self.groups = groups
        self.link = link
        self.requests = 0

    @property
    def local(self) -> LocalIndex:
        """Where the blocks are, wherever that is."""
        if isinstance(self.index, LocalIndex):
            return self.index
        assert self.link is not None
        assert self.link.life is not None
        return self.link.node.space_of[self.link.life].local

    def step(self) -> list[Chain]:
        """Let a step go by; return what has to be stored after all."""
        assert not self.index.plan()
        if self.link is not None:
            self.link.let_in()
        return self.receive()

    def receive(self) -> list[Chain]:
        """Hear what has come. Ranks map the memory of a life as soon as there is one."""
        unkept = self.index.receive()
        if self.index.pool != self._mapped:
            self._mapped = self.index.pool
            self.index.grow(self.slots)
        return unkept

    # ------------------------------------------------------------------ loading

    def request(self, name: str, blocks: int, tail: int = 1) -> Request:
        """Return a request for a text of `blocks` blocks of SIZE tokens, and some tokens more."""
        self.requests += 1
        tokens = text(name, blocks * SIZE + tail)
        keys = [keys_of(tokens, group.block_tokens, index) for index, group in enumerate(self.groups)]
        return Request(f"r{self.requests}", keys, [[] for _ in self.groups])

    def look_up(
        self,
        request: Request,
        device_tokens: int = 0,
        num_tokens: int | None = None,
        pays: Callable[[int], bool] = lambda _: True,
    ) -> Match:
        """Look up step after step until there is an answer."""
        num_tokens = len(request.keys[0]) * self.groups[0].block_tokens + 1 if num_tokens is None else num_tokens
        for _ in range(STEPS_MAX):
            match = self.index.look_up(request, device_tokens, num_tokens, pays)
            if not match.waits:
                return match
            self.step()
        raise AssertionError("there is no answer")

    def lease(self, name: str, blocks: int) -> tuple[Match, Lease]:
        """Look a text up, and keep what there is of it."""
        match = self.look_up(self.request(name, blocks))
        return match, self.index.lease(match)

    def found(self, name: str, blocks: int) -> int:
        """Return how many tokens of a text are there; nothing is kept."""
        request = self.request(name, blocks)
        match = self.look_up(request)
        self.index.drop(request)
        self.step()
        return match.tokens

    # ------------------------------------------------------------------ storing

    def chain(self, name: str, first: int, last: int, group: int = 0) -> Chain:
        """Return blocks of a text, all on the device."""
        size = self.groups[group].block_tokens
        keys = keys_of(text(name, last * size), size, group)
        parent = keys[first - 1] if first else None
        return Chain(group, keys[first:], parent, (first + 1) * size, list(range(1, last - first + 1)))

    def ask(self, *chains: Chain, room: int = 100, needs_prefix: bool = False, touch: bool = False) -> list[Grant]:
        """Reserve, and return the answer as soon as there is one."""
        answers: list[list[Grant]] = []
        self.index.reserve([Want(chain, needs_prefix, touch) for chain in chains], room, answers.append)
        if not answers:
            self.step()
        (grants,) = answers
        return grants

    def store(self, name: str, first: int, last: int, group: int = 0) -> list[Chain]:
        """Store blocks of a text as far as they are lacking; return what was written."""
        (grant,) = self.ask(self.chain(name, first, last, group))
        if grant.runs:
            assert self.index.settle(grant.runs, kept=True)
        self.step()
        return grant.runs

    def fill(self) -> tuple[int, int, int]:
        """Return how many slots are free, cached, and pinned."""
        self.step()
        fill = self.local.fill()
        return fill.free, fill.cached, fill.pinned


def bench_of(kind: str, groups: Sequence[Group], slots: int = 16, **options: object) -> Bench:
    """Return an index of some kind that has room for `slots` blocks."""
    config = config_of(groups, slots, **options)
    if kind == "local":
        return Bench(local_index(config), groups)
    return engine_of(MemoryNode(config), groups, slots, later="later" in kind)


def engine_of(node: MemoryNode, groups: Sequence[Group], slots: int, *, later: bool = False) -> Bench:
    """Return one more engine of a node, which can use the first `slots` slots."""
    link = MemoryLink(node, later=later)
    bench = Bench(RemoteIndex(link, groups, remember_blocks=64), groups, link, slots=slots)
    bench.step()
    bench.step()
    return bench
