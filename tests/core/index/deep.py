"""An index of any kind above tiers that a test answers for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtide.core import BelowConfig, Geometry, Group, Match, OffloadConfig
from kvtide.core.chain import Chain
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.messages import Answer, Clear, Errand, Name, Report, Sink
from kvtide.core.requests import Request
from tests.core.index.bench import SIZE, Bench
from tests.memory_node import MemoryLink, MemoryNode, Space, local_index

RANKS = 2
THROUGH = BelowConfig(through=frozenset({"all"}))


def deep_config(groups: Sequence[Group], slots: int, below: BelowConfig = THROUGH, **options: object) -> OffloadConfig:
    geometry = Geometry(groups=tuple(groups), block_bytes=1, device_blocks=64, step_tokens=16, ranks=RANKS)
    return OffloadConfig.build(geometry, {"host_per_rank": slots, "min_fetch_tokens": SIZE, **options}, below)


class DeepBench(Bench):
    """One engine's index, and what is below it: `kept[rank]` has the names that a rank's tier has."""

    kept: list[set[Name]]
    errands: list[Errand]
    """Begun and not answered."""
    unkept: list[Chain]

    def step(self) -> list[Chain]:
        """Let a step go by, in which tiers begin what they are told to."""
        self.errands += self.index.plan()
        if self.link is not None:
            self.link.let_in()
            self.errands += self._space.shared.plan()
        unkept, self.unkept = self.unkept, []
        return [*unkept, *self.receive()]

    @property
    def _space(self) -> Space:
        assert self.link is not None
        return self.link.space

    def begun(self, kind: type[Errand]) -> list[Errand]:
        """Let a step go by, and return what is under way of a kind."""
        self.step()
        return [errand for errand in self.errands if isinstance(errand, kind)]

    def answer(self, *errands: Errand, ranks: Iterable[int] = range(RANKS), seconds: float = 0.0) -> None:
        """Let ranks do what they were told to."""
        for rank in ranks:
            self.report(Report(rank, answers=tuple(Answer(e.id, self._done(rank, e), seconds) for e in errands)))
        for errand in errands:
            self.errands.remove(errand)

    def late(self, errand: Errand) -> None:
        """Let a tier be late."""
        self.report(Report(0, late=(errand.id,)))

    def report(self, report: Report) -> None:
        if self.link is not None:
            self._space.shared.report(report)
            self.link.node.tell()
            return
        assert isinstance(self.index, LocalIndex)
        settled = self.index.ledger.settle(report)
        for fetch_id in report.late:
            self.index.late(fetch_id)
        for errand in settled:
            self.unkept += self.index.answered(errand)

    def settle(self) -> None:
        """Answer everything, until nothing is under way."""
        while True:
            self.step()
            if not self.errands:
                break
            self.answer(*self.errands)
        self.step()

    def found_below(self, request: Request) -> Match:
        """Look up step after step, with tiers that answer."""
        num_tokens = len(request.keys[0]) * self.groups[0].block_tokens + 1
        for _ in range(20):
            match = self.index.look_up(request, 0, num_tokens, lambda _: True)
            if not match.waits:
                return match
            if match is not request.reservation:
                request.lease, request.reservation = self.index.lease(match), match
            self.index.wait(request, match)
            self.settle()
        raise AssertionError("it waits for ever")

    def begin(self, request: Request) -> Match:
        """Look a request up once, and let it wait if it should."""
        num_tokens = len(request.keys[0]) * self.groups[0].block_tokens + 1
        match = self.index.look_up(request, 0, num_tokens, lambda _: True)
        if match is not request.reservation:
            lease = self.index.lease(match)
            self.let_go(request)
            request.lease, request.reservation = lease, match
        self.index.wait(request, match)
        self.step()
        return match

    def until(self, request: Request) -> Match:
        """Look a request up until it waits no longer; tiers do nothing meanwhile."""
        for _ in range(10):
            match = self.begin(request)
            if not match.waits:
                return match
        raise AssertionError("it waits for ever")

    def let_go(self, request: Request) -> None:
        """Return what is kept for a request."""
        if request.lease is not None:
            self.index.release(request.lease)
        request.lease = request.reservation = None

    def finish(self, request: Request) -> None:
        """A request is over."""
        self.index.drop(request)
        self.let_go(request)
        self.step()

    def sink(self, name: str, blocks: int) -> None:
        """Store a text, and let it sink."""
        self.store(name, 0, blocks)
        self.settle()

    def forget(self, slots: int = 16) -> None:
        """Fill the host with something else, which stays there."""
        before = [set(kept) for kept in self.kept]
        self.store("something else", 0, slots)
        self.settle()
        self.kept = before

    def _done(self, rank: int, errand: Errand) -> tuple[int, ...]:
        if isinstance(errand, Clear):
            self.kept[rank].clear()
            return ()
        if isinstance(errand, Sink):
            self.kept[rank].update(errand.names)
        return tuple(at for at, name in enumerate(errand.names) if name in self.kept[rank])


def deep_bench(
    kind: str, groups: Sequence[Group], slots: int = 16, below: BelowConfig = THROUGH, **options: object
) -> DeepBench:
    """Return an index of some kind above tiers."""
    config = deep_config(groups, slots, below, **options)
    if kind == "local":
        return _with_tiers(DeepBench(local_index(config), groups))
    return deep_engine(MemoryNode(config), groups, slots, later="later" in kind)


def deep_engine(node: MemoryNode, groups: Sequence[Group], slots: int = 16, *, later: bool = False) -> DeepBench:
    """Return one more engine of a node above tiers."""
    link = MemoryLink(node, later=later)
    bench = _with_tiers(DeepBench(RemoteIndex(link, groups), groups, link, slots=slots))
    bench.receive()
    bench.step()
    bench.step()
    return bench


def _with_tiers(bench: DeepBench) -> DeepBench:
    bench.kept, bench.errands, bench.unkept = [set() for _ in range(RANKS)], [], []
    return bench
