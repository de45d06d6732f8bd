"""A small world around one manager: a fake engine on the real device pool, and fake workers that move fake bytes.

    world = World(host_blocks=8)
    request = world.add("r", text("a", 10))
    world.admit(request)
    world.compute(request)
    world.step()                 # plan, copy on every rank, report
    world.finish(request)
    world.drain()                # until nothing is under way; then nothing may be pinned

What is in a block is a `KV`: the tokens it was computed from, per rank. Stores and loads move it between two
dictionaries when they are run, so that a copy of the wrong block, at the wrong time or of half the ranks shows as
wrong bytes: `compute` looks at everything it would attend to, and `check` at every visible key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, zip_longest
from typing import NamedTuple

from kvtide.core import (
    NULL_BLOCK,
    Copy,
    FullAttention,
    Geometry,
    Group,
    Key,
    Match,
    OffloadConfig,
    OffloadManager,
    Outcome,
    Plan,
    Report,
    longest_resumable,
)
from kvtide.core.config import BelowConfig
from kvtide.core.groups import Present
from kvtide.core.host_pool import HostPool
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.messages import Answer, Clear, Errand, Fetch, Name, Pool, Sink
from kvtide.engine.block_pool import BlockPool
from tests.memory_node import MemoryLink, MemoryNode

ROUNDS_MAX = 1_000


def text(name: str, count: int, start: int = 0) -> list[str]:
    """Tokens `start` up to `start + count` of a text. Texts share prefixes when their tokens do."""
    return [f"{name}{index}" for index in range(start, start + count)]


def keys_of(tokens: Sequence[str], block_tokens: int, group: int = 0) -> list[Key]:
    """Return the keys of the full blocks of `tokens` in a group."""
    keys: list[Key] = []
    extend_keys(keys, tokens, block_tokens, group)
    return keys


def extend_keys(keys: list[Key], tokens: Sequence[str], block_tokens: int, group: int) -> None:
    """Append the keys of the full blocks that `keys` does not have yet."""
    for end in range((len(keys) + 1) * block_tokens, len(tokens) + 1, block_tokens):
        parent = keys[-1] if keys else str(group).encode()
        keys.append(blake2b(parent + "|".join(tokens[end - block_tokens : end]).encode(), digest_size=12).digest())


class KV(NamedTuple):
    """What a block holds on one rank: the KV of `tokens`, computed with everything `before` it in mind."""

    rank: int
    group: int
    weights: int
    """How many resets there were: KV of other weights is not the same."""
    before: Key | None
    tokens: tuple[str, ...]


class NoRoomError(Exception):
    """The device pool has too few free blocks: an ordinary answer, for the test to deal with."""


@dataclass(eq=False)
class FakeRequest:
    """A request as an engine sees it."""

    id: str
    tokens: list[str]
    keys: list[list[Key]]
    blocks: list[list[int]]
    computed: int = 0
    registered: list[int] = field(default_factory=list)
    """Per group: full blocks of which the device pool knows what they hold."""
    device_tokens: int = 0
    resume_at: int = 0
    weights: int = 0
    """The weights that its KV was computed with."""
    placed: bool = False
    loading: bool = False


@dataclass
class Pending:
    """A copy that was planned and has not been reported by some ranks."""

    copy: Copy
    is_load: bool
    ranks_left: set[int]
    host: dict[tuple[int, int], KV]
    """The host memory that it reads or writes."""


def index_of(manager: OffloadManager, link: MemoryLink | None = None) -> LocalIndex:
    """Return the index of a manager, its own or that at the end of a link."""
    index = manager._index if link is None else link.space.local
    assert isinstance(index, LocalIndex)
    return index


def host_of(manager: OffloadManager) -> HostPool:
    """Return the host pool of a manager that has its own."""
    return index_of(manager).host


class World:
    """One manager, one device pool, requests, and copies that are run when the test says so."""

    def __init__(
        self,
        *,
        groups: Sequence[Group] = (FullAttention(4),),
        ranks: int = 1,
        device_blocks: int = 32,
        host_blocks: int = 64,
        step_tokens: int = 16,
        below: BelowConfig | None = None,
        node: MemoryNode | None = None,
        later: bool = False,
        slots_ready: int | None = None,
        **options: object,
    ) -> None:
        """`node`: where host blocks are kept, if not by the manager itself; `later`: it answers in the next step.

        `slots_ready`: host slots that can be used at once, if not all of them.
        """
        self.groups = tuple(groups)
        self.ranks = ranks
        self.step_tokens = step_tokens
        geometry = Geometry(
            groups=self.groups, block_bytes=1, device_blocks=device_blocks, ranks=ranks, step_tokens=step_tokens
        )
        self.config = OffloadConfig.build(geometry, {"host_per_rank": host_blocks, **options}, below)
        self.pool = BlockPool(device_blocks)
        self.link = None if node is None else MemoryLink(node, later=later)
        index = None if self.link is None else RemoteIndex(self.link, self.groups, remember_blocks=2 * device_blocks)
        self.manager = OffloadManager(self.config, self.pool, slots_ready=slots_ready, index=index)
        self._mapped: Pool | None = None
        self.requests: dict[str, FakeRequest] = {}
        self.pending: dict[int, Pending] = {}
        """Copies that were planned and are not complete, oldest first."""
        self.device: dict[tuple[int, int], KV] = {}
        """What is in device memory, by rank and block."""
        self._host: dict[tuple[int, int], KV] = {}
        self.weights = 0
        self.errands: dict[int, Errand] = {}
        """Errands that were planned and are not answered, oldest first."""
        self.below: dict[tuple[int, Name], KV] = {}
        """What is below host memory, by rank and name."""
        self._below_of: dict[int, dict[tuple[int, Name], KV]] = {}
        """What was below when an errand began: it is about that, also when there was a clear since."""
        if self.link is not None:
            self._map(self.manager.plan().pool)
            self.manager.plan()  # tells the node

    # ------------------------------------------------------------------ requests

    @property
    def index(self) -> LocalIndex:
        """The index, wherever it is."""
        return index_of(self.manager, self.link)

    @property
    def host_pool(self) -> HostPool:
        """The host pool."""
        return self.index.host

    @property
    def host(self) -> dict[tuple[int, int], KV]:
        """What is in host memory, by rank and slot."""
        return self._host if self.link is None else self.link.space.memory

    def add(self, request_id: str, tokens: Iterable[str]) -> FakeRequest:
        """Make a request known."""
        count = len(self.groups)
        request = FakeRequest(
            request_id, [], [[] for _ in range(count)], [[] for _ in range(count)], registered=[0] * count
        )
        self.append(request, tokens)
        self.manager.add_request(request_id, request.keys, request.blocks)
        self.requests[request_id] = request
        return request

    def begin(self, request_id: str, tokens: Iterable[str]) -> FakeRequest:
        """Make a request known, and admit it."""
        request = self.add(request_id, tokens)
        self.admit(request)
        return request

    def prefill(
        self, request_id: str, tokens: Iterable[str], upto: int | None = None, *, tell: bool = True
    ) -> FakeRequest:
        """Make a request known, admit it, and compute it."""
        request = self.begin(request_id, tokens)
        self.compute(request, upto, tell=tell)
        return request

    def append(self, request: FakeRequest, tokens: Iterable[str]) -> None:
        """Let a request have more tokens: the next turn, or what was decoded."""
        request.tokens += tokens
        for index, group in enumerate(self.groups):
            extend_keys(request.keys[index], request.tokens, group.block_tokens, index)

    def device_hit(self, request: FakeRequest) -> int:
        """Return how many tokens are on the device."""

        def present(index: int) -> Present:
            keys = request.keys[index]
            return lambda block: block < len(keys) and self.pool.find(index, keys[block]) is not None

        everywhere = [present(index) for index in range(len(self.groups))]
        return longest_resumable(self.groups, 0, len(request.tokens) - 1, everywhere)

    def match(self, request: FakeRequest) -> Match:
        """Look a request up, beyond what the device has."""
        return self.manager.match(request.id, self.device_hit(request), len(request.tokens))

    def admit(self, request: FakeRequest, accept: int | None = None) -> bool:
        """Match, reserve, allocate, admit; take `accept` tokens of the offer (all of it). True: it loads now."""
        match = self.match(request)
        self.manager.reserve(match)
        while match.waits and self.link is not None:
            self.plan()
            match = self.match(request)
            self.manager.reserve(match)
        accepted = match.tokens if accept is None else accept
        try:
            self.place(request, match.device_tokens, match.device_tokens + accepted)
        except NoRoomError:
            self.manager.give_up(request.id)
            raise
        request.loading = self.manager.admit(request.id, accepted)
        return request.loading

    def place(self, request: FakeRequest, device_tokens: int, resume_at: int) -> None:
        """Fill a request's tables: what the device has, and room for what is loaded up to `resume_at`."""
        tables: list[list[int]] = []
        for index, group in enumerate(self.groups):
            first = group.first_needed(resume_at)
            found = request.keys[index][first : device_tokens // group.block_tokens]
            hits = [self.pool.find(index, key) for key in found]
            tables.append([NULL_BLOCK] * first + [block or NULL_BLOCK for block in hits])
        hits_free = sum(self.pool.refs(block) == 0 for table in tables for block in table if block)
        if self._missing(tables, resume_at) > self.pool.num_free - hits_free:
            raise NoRoomError(request.id)
        for live, table in zip(request.blocks, tables, strict=True):
            self.pool.take(table)
            live[:] = table
        request.computed = request.device_tokens = device_tokens
        request.resume_at = resume_at
        request.weights = self.weights
        request.registered = [device_tokens // group.block_tokens for group in self.groups]
        request.placed = True
        self._extend(request, resume_at)

    def compute(self, request: FakeRequest, upto: int | None = None, *, tell: bool = True) -> None:
        """Compute tokens up to `upto` (all), looking at everything they attend to.

        `tell=False` leaves out `advance`: the tokens are placeholders as far as the manager knows.
        """
        assert request.placed, f"{request.id} has no blocks"
        assert not request.loading, f"{request.id} waits for a load"
        upto = len(request.tokens) if upto is None else upto
        self._extend(request, upto)
        self.check_request(request)
        written = {
            block
            for index, group in enumerate(self.groups)
            for block in request.blocks[index][request.computed // group.block_tokens : -(-upto // group.block_tokens)]
        }
        busy = {block for pending in self.pending.values() for block in pending.copy.blocks}
        assert not written & busy, f"blocks {written & busy} are being copied and would be written by compute (I1)"
        request.computed = upto
        for index in range(len(self.groups)):
            self._write(request, index)
        self._register(request)
        if tell:
            self.manager.advance(request.id, upto)

    def slide(self, request: FakeRequest) -> None:
        """Free the blocks that no token to come will need."""
        for group, table in zip(self.groups, request.blocks, strict=True):
            first = min(group.first_needed(request.computed), len(table))
            gone = table[:first]
            table[:first] = [NULL_BLOCK] * first
            self.pool.free(gone)

    def preempt(self, request: FakeRequest) -> None:
        """Take a request's blocks away; it can be admitted again."""
        self.manager.preempt(request.id)
        self._release(request)

    def finish(self, request: FakeRequest) -> None:
        """End a request, in whatever state it is."""
        self.manager.finish(request.id)
        self._release(request)
        del self.requests[request.id]

    def serve(self, request_id: str, tokens: Iterable[str], *, chunk: int | None = None) -> FakeRequest:
        """Run one request from beginning to end, `chunk` tokens a step, with all copies of a step done in it."""
        request = self.add(request_id, tokens)
        for _ in range(2):  # a load that fails is not tried again
            if self.admit(request):
                self.step()
            if request.placed:
                break
        while request.computed < len(request.tokens):
            self.compute(request, min(len(request.tokens), request.computed + (chunk or self.step_tokens)))
            self.step()
            self.slide(request)
        self.finish(request)
        self.drain()
        return request

    def reset(self) -> None:
        """Change the weights: nothing that was cached anywhere is valid any more.

        Requests that run go on with KV of the old weights, which is not registered with the pool.
        """
        self.pool.reset()
        self.manager.reset()
        self.weights += 1

    def fill_device(self) -> None:
        """Let someone else have all free blocks for a moment, so that the device forgets what it can."""
        blocks = self.pool.allocate(self.pool.num_free) or []
        for rank in range(self.ranks):
            for block in blocks:
                self.device.pop((rank, block), None)
        self.pool.free(blocks)

    # ------------------------------------------------------------------ steps

    def plan(self, *, idle: bool = False) -> Plan:
        """Ask for a plan; its copies are pending from now on."""
        plan = self.manager.plan(idle=idle)
        for copies, is_load in ((plan.loads, True), (plan.stores, False)):
            for copy in copies:
                self._check_new(copy)
                self.pending[copy.id] = Pending(copy, is_load, set(range(self.ranks)), self.host)
        for errand in plan.errands:
            if isinstance(errand, Clear):
                self.below = {}  # tiers call everything by other names from now on
            self.errands[errand.id] = errand
            self._below_of[errand.id] = self.below
        if self.link is not None:
            self.link.let_in()
            self._map(plan.pool)
        return plan

    def _map(self, pool: Pool | None) -> None:
        """Let every rank have the memory of a life, as soon as it hears of it."""
        if pool != self._mapped:
            self._mapped = pool
            if pool is not None:
                self.report(
                    *(Report(rank, slots_ready=self.config.slots, life=pool.life) for rank in range(self.ranks))
                )

    def drain_copies(self) -> None:
        """Run the copies that are pending, and leave the errands alone."""
        for pending in list(self.pending.values()):
            self.run(pending.copy)

    def answer(self, errand: Errand, *, misses: Iterable[int] = (), seconds: float = 0.001) -> Outcome:
        """Do an errand on every rank and report it; `misses`: positions that come to nothing everywhere."""
        del self.errands[errand.id]
        reports = []
        for rank in range(self.ranks):
            hits = tuple(position for position in self._errand(errand, rank) if position not in set(misses))
            reports.append(Report(rank, answers=(Answer(errand.id, hits, seconds),)))
        return self.report(*reports)

    def _errand(self, errand: Errand, rank: int) -> Iterator[int]:
        """Do an errand on one rank; yield the positions that were hits."""
        if isinstance(errand, Clear):
            return
        below = self._below_of[errand.id]
        for position, name in enumerate(errand.names):
            if isinstance(errand, Sink):
                below[rank, name] = self.host[rank, errand.slots[position]]
            elif isinstance(errand, Fetch) and (rank, name) in below:
                self.host[rank, errand.slots[position]] = below[rank, name]
            if (rank, name) in below:
                yield position

    def run(
        self,
        copy: Copy,
        *,
        ranks: Iterable[int] | None = None,
        why: str | None = None,
        not_kept: tuple[int, ...] = (),
    ) -> Outcome:
        """Copy on some ranks (those that are left) and report it.

        `why`: the copy fails, with half the bytes moved. `not_kept`: slots that there is no place for.
        """
        pending = self.pending[copy.id]
        reports = []
        for rank in sorted(pending.ranks_left if ranks is None else ranks):
            self._move(pending, rank, half=why is not None)
            pending.ranks_left.discard(rank)
            done = Report(rank, done=(copy.id,), not_kept=((copy.id, not_kept),) if not_kept else ())
            reports.append(Report(rank, failed=((copy.id, why),)) if why else done)
        if not pending.ranks_left:
            del self.pending[copy.id]
        return self.report(*reports)

    def report(self, *reports: Report) -> Outcome:
        """Hand reports to the manager and let the requests go on that it names."""
        outcome = self.manager.report(*reports)
        for request_id in outcome.loaded:
            request = self.requests[request_id]
            request.loading = False
            request.computed = request.resume_at
            self._register(request)
            self.check_request(request)
        for request_id in outcome.failed:
            self.preempt(self.requests[request_id])
        return outcome

    def step(self, *, fails: Callable[[Copy], bool] = lambda _: False, idle: bool = False) -> Outcome:
        """Plan, run everything that is pending on every rank (or let it fail), and report."""
        self.plan(idle=idle)
        outcomes = [self.report()]
        outcomes += [
            self.run(pending.copy, why="told to fail" if fails(pending.copy) else None)
            for pending in list(self.pending.values())
        ]
        outcomes += [self.answer(errand) for errand in list(self.errands.values())]
        return Outcome(
            tuple(chain.from_iterable(outcome.loaded for outcome in outcomes)),
            tuple(chain.from_iterable(outcome.failed for outcome in outcomes)),
        )

    def drain(self) -> None:
        """Step until nothing is under way, and check the state."""
        for _ in range(ROUNDS_MAX):
            if not self.manager.busy:
                break
            self.step(idle=True)
        else:
            raise AssertionError("the manager is still busy")
        self.check()

    # ------------------------------------------------------------------ checks

    def check(self) -> None:
        """Check what always holds (design.md): I2 to I5 and I9."""
        gauges, fill = self.manager.gauges(), self.index.fill()
        assert gauges.slots_free + gauges.slots_cached + gauges.slots_writing == gauges.slots
        slots_writing = fill.slots - fill.free - fill.cached
        assert min(fill.free, fill.cached, slots_writing, fill.pinned) >= 0
        assert 0 <= gauges.store_pins <= self.config.pin_budget_blocks
        assert gauges.transfers + gauges.transfers_unanswered == len(self.pending)
        if not self.manager.busy:
            assert slots_writing == gauges.store_pins == gauges.backlog_blocks == 0
            assert self.pool.num_pinned == 0
            if not self.requests:
                assert fill.pinned == 0
                if self.link is not None:
                    self.link.check_at_rest()
                assert self.pool.num_free == self.pool.num_blocks
        for request in self.requests.values():
            self.check_visible(request.tokens)

    def check_visible(self, tokens: Sequence[str]) -> None:
        """Check that what is visible of a text is there on every rank, as it was computed (I3, I4)."""
        for index, group in enumerate(self.groups):
            for position, key in enumerate(keys_of(tokens, group.block_tokens, index)):
                slot = self.host_pool.cached_slot(index, key)
                if slot is not None:
                    for rank in range(self.ranks):
                        assert self.host.get((rank, slot)) == self._kv(rank, index, tokens, position, len(tokens))

    def check_request(self, request: FakeRequest) -> None:
        """Check that everything that the next token of a request attends to is on the device, on every rank (I4)."""
        for index, group in enumerate(self.groups):
            for position in range(group.first_needed(request.computed), -(-request.computed // group.block_tokens)):
                block = request.blocks[index][position]
                for rank in range(self.ranks):
                    wanted = self._kv(rank, index, request.tokens, position, request.computed, weights=request.weights)
                    there = self.device.get((rank, block))
                    assert there is not None, f"{request.id}: group {index} block {position} holds nothing"
                    # A block that was loaded whole holds more tokens than were accepted.
                    there = there._replace(tokens=there.tokens[: len(wanted.tokens)])
                    assert there == wanted, f"{request.id}: group {index} block {position} holds {there}"

    def cached_blocks(self, tokens: Sequence[str], group: int = 0) -> list[int]:
        """Return the positions of the blocks of a text that are visible in a group."""
        keys = keys_of(tokens, self.groups[group].block_tokens, group)
        return [position for position, key in enumerate(keys) if self.manager.is_cached(group, key)]

    # ------------------------------------------------------------------ inside

    def _kv(
        self, rank: int, index: int, tokens: Sequence[str], position: int, computed: int, *, weights: int | None = None
    ) -> KV:
        size = self.groups[index].block_tokens
        before = keys_of(tokens[: position * size], size, index)
        part = tokens[position * size : min(computed, (position + 1) * size)]
        return KV(
            rank, index, self.weights if weights is None else weights, before[-1] if before else None, tuple(part)
        )

    def _write(self, request: FakeRequest, index: int) -> None:
        """Write what was computed since the last registration into the device's memory."""
        size = self.groups[index].block_tokens
        for position in range(request.registered[index], -(-request.computed // size)):
            block = request.blocks[index][position]
            if block != NULL_BLOCK:
                for rank in range(self.ranks):
                    kv = self._kv(rank, index, request.tokens, position, request.computed, weights=request.weights)
                    self.device[rank, block] = kv

    def _register(self, request: FakeRequest) -> None:
        for index, group in enumerate(self.groups):
            keys, table = request.keys[index], request.blocks[index]
            full = min(request.computed // group.block_tokens, len(keys))
            for position in range(request.registered[index], full):
                if table[position] != NULL_BLOCK and request.weights == self.weights:
                    parent = keys[position - 1] if position else None
                    end_tokens = (position + 1) * group.block_tokens
                    self.pool.register(table[position], index, keys[position], parent, end_tokens)
            request.registered[index] = full

    def _missing(self, tables: Sequence[Sequence[int]], num_tokens: int) -> int:
        return sum(
            max(0, -(-num_tokens // group.block_tokens) - len(table))
            for group, table in zip(self.groups, tables, strict=True)
        )

    def _extend(self, request: FakeRequest, num_tokens: int) -> None:
        blocks = self.pool.allocate(self._missing(request.blocks, num_tokens))
        if blocks is None:
            raise NoRoomError(request.id)
        for block in blocks:
            for rank in range(self.ranks):
                self.device.pop((rank, block), None)
        for group, table in zip(self.groups, request.blocks, strict=True):
            count = max(0, -(-num_tokens // group.block_tokens) - len(table))
            table.extend(blocks[:count])
            del blocks[:count]

    def _release(self, request: FakeRequest) -> None:
        """Free all blocks, so that the end of the prefix is the next victim in all groups."""
        self.pool.free(list(chain.from_iterable(zip_longest(*request.blocks, fillvalue=NULL_BLOCK))))
        for table in request.blocks:
            table.clear()
        request.computed = request.device_tokens = request.resume_at = 0
        request.registered = [0] * len(self.groups)
        request.placed = request.loading = False

    def _check_new(self, copy: Copy) -> None:
        """Check that a copy has pairs, and that nothing else writes to what it uses (I1, I2, I7)."""
        assert copy.blocks, f"copy {copy.id} has nothing to do"
        assert len(copy.blocks) == len(copy.slots)
        assert NULL_BLOCK not in copy.blocks
        assert all(self.pool.refs(block) for block in copy.blocks), f"copy {copy.id} uses a block that is free"

    def _move(self, pending: Pending, rank: int, *, half: bool) -> None:
        pairs = list(zip(pending.copy.blocks, pending.copy.slots, strict=True))
        for block, slot in pairs[: len(pairs) // 2] if half else pairs:
            if pending.is_load:
                self.device[rank, block] = pending.host[rank, slot]
            elif (rank, block) in self.device:
                pending.host[rank, slot] = self.device[rank, block]
            else:
                pending.host.pop((rank, slot), None)
        if half:  # what a failed copy was about to write is garbage
            for block, slot in pairs[len(pairs) // 2 :]:
                if pending.is_load:
                    self.device.pop((rank, block), None)
                else:
                    pending.host.pop((rank, slot), None)
