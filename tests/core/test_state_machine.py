"""The façade against a plain-dict model: any order of engine events, copies and reports keeps the invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtide.core import (
    NULL_BLOCK,
    ChunkedLocal,
    Cleared,
    Copy,
    FullAttention,
    Geometry,
    Group,
    OffloadConfig,
    OffloadManager,
    Pool,
    Removed,
    Report,
    SlidingWindow,
    StateSpace,
    Stored,
    longest_resumable,
)
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.remote import RemoteIndex
from kvtide.engine.block_pool import BlockPool
from tests.memory_node import MemoryLink, MemoryNode
from tests.support import index_of

LAYOUTS: list[tuple[Group, ...]] = [
    (FullAttention(4),),
    (FullAttention(4), SlidingWindow(4, 7)),
    (FullAttention(8), SlidingWindow(4, 10)),
    (FullAttention(4), ChunkedLocal(4, 16)),
    (FullAttention(4), StateSpace(8)),
    (SlidingWindow(4, 9),),
]
DEVICE_BLOCKS = 24
Content = tuple[Any, ...]
"""What a block holds: ("kv", epoch, group, key), or something that must never be served."""


@dataclass
class Sequence:
    """A request of the model engine."""

    name: str
    family: tuple[int, int]
    tokens: int
    keys: list[list[bytes]]
    blocks: list[list[int]]
    state: str = "waiting"
    computed: int = 0
    stale: bool = False


@dataclass
class InFlight:
    """A copy on its way: what each rank has still to do."""

    copy: Copy
    is_store: bool
    content: list[Content]
    """At planning time, of the source blocks or slots, on rank 0."""
    host: dict[tuple[int, int], Content]
    """The host memory that it reads or writes, by rank and slot."""
    to_run: set[int] = field(default_factory=set)
    to_report: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


def key_of(family: tuple[int, int], index: int) -> bytes:
    """Families share their first two blocks of 8 tokens with others of the same root."""
    root, branch = family
    return f"{root}:{branch if index >= 2 else '*'}:{index}".encode()


class Engine(RuleBasedStateMachine):
    """Drives a manager as an engine would, with contents instead of bytes."""

    kind = "local"

    @initialize(
        layout=st.sampled_from(LAYOUTS),
        slots=st.integers(1, 30),
        ranks=st.integers(1, 2),
        mode=st.sampled_from(["eager", "lazy"]),
        policy=st.sampled_from(["prefix", "lru"]),
        budget=st.integers(1, DEVICE_BLOCKS),
    )
    def start(self, *, layout: tuple[Group, ...], slots: int, ranks: int, mode: str, policy: str, budget: int) -> None:
        self.groups, self.ranks, self.budget = layout, ranks, budget
        self.pool = BlockPool(DEVICE_BLOCKS)
        geometry = Geometry(groups=layout, block_bytes=1, device_blocks=DEVICE_BLOCKS, ranks=ranks, step_tokens=16)
        options = {"host_per_rank": slots, "mode": mode, "policy": policy, "pin_budget": budget, "events": True}
        self.config = OffloadConfig.build(geometry, options)
        self.link: MemoryLink | None = None
        self.mapped = 0
        self.manager = self.make_manager()
        self.device: list[dict[int, Content]] = [{} for _ in range(ranks)]
        self.own_host: dict[tuple[int, int], Content] = {}
        self.visible: dict[tuple[int, bytes], None] = {}
        self.index_seen = index_of(self.manager, self.link)
        self.sequences: dict[str, Sequence] = {}
        self.in_flight: dict[int, InFlight] = {}
        self.epoch = 0
        self.serial = 0
        for _ in range(2 if self.link is not None else 0):
            self.plan(idle=False)  # the ranks hear of a life, and the node hears of them

    def make_manager(self) -> OffloadManager:
        if self.kind == "local":
            return OffloadManager(self.config, self.pool)
        self.link = MemoryLink(MemoryNode(self.config), later=self.kind == "later")
        index = RemoteIndex(self.link, self.groups, remember_blocks=DEVICE_BLOCKS)
        manager = OffloadManager(self.config, self.pool, index=index)
        manager.plan()  # begins a life
        return manager

    def map(self, pool: Pool | None) -> None:
        """Let every rank have the memory of a life, as soon as it hears of it."""
        if pool is not None and pool.life != self.mapped:
            self.mapped = pool.life
            ready = [Report(rank, slots_ready=self.config.slots, life=pool.life) for rank in range(self.ranks)]
            self.heed(*ready)

    @property
    def host(self) -> dict[tuple[int, int], Content]:
        return self.own_host if self.link is None else self.link.space.memory

    # ------------------------------------------------------------------ requests

    @rule(root=st.integers(0, 1), branch=st.integers(0, 1), tokens=st.integers(2, 40))
    def arrive(self, root: int, branch: int, tokens: int) -> None:
        self.serial += 1
        family = (root, branch)
        keys = [
            [
                key_of(family, (index * group.block_tokens) // 8) + b"/%d" % index
                for index in range(tokens // group.block_tokens)
            ]
            for group in self.groups
        ]
        sequence = Sequence(f"r{self.serial}", family, tokens, keys, [[] for _ in self.groups])
        self.sequences[sequence.name] = sequence
        self.manager.add_request(sequence.name, sequence.keys, sequence.blocks)

    def pick(self, data: st.DataObject, *states: str) -> Sequence | None:
        names = [name for name, sequence in self.sequences.items() if sequence.state in states]
        return self.sequences[data.draw(st.sampled_from(names))] if names else None

    @rule(data=st.data(), share=st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0]), keep=st.booleans())
    def place(self, data: st.DataObject, share: float, keep: bool) -> None:
        sequence = self.pick(data, "waiting")
        if sequence is not None:
            self.place_sequence(sequence, share, keep)

    def place_sequence(self, sequence: Sequence, share: float, keep: bool) -> None:
        device_tokens = longest_resumable(
            self.groups, 0, sequence.tokens - 1, [self.present_on_device(sequence, g) for g in range(len(self.groups))]
        )
        match = self.manager.match(sequence.name, device_tokens, sequence.tokens)
        for _ in range(2):  # in a new life for the ranks, and then for the answer
            if match.waits:
                self.manager.reserve(match)
                self.plan(idle=False)
                match = self.manager.match(sequence.name, device_tokens, sequence.tokens)
        assert not match.waits
        again = self.manager.match(sequence.name, device_tokens, sequence.tokens)
        assert (match.tokens, match.slots) == (again.tokens, again.slots), "looking changes nothing"
        assert device_tokens + match.tokens <= max(device_tokens, sequence.tokens - 1)
        self.manager.reserve(match)
        accepted = int(match.tokens * share)
        if not self.allocate(sequence, device_tokens, device_tokens + accepted):
            if not keep:
                self.manager.give_up(sequence.name)
            return
        sequence.computed = device_tokens
        sequence.state = "loading" if self.manager.admit(sequence.name, accepted) else "running"

    def present_on_device(self, sequence: Sequence, group: int) -> Any:
        keys = sequence.keys[group]
        return lambda index: index < len(keys) and self.pool.find(group, keys[index]) is not None

    def allocate(self, sequence: Sequence, device_tokens: int, until: int) -> bool:
        """Take device hits and new blocks for tokens up to `until`; nothing changes when there is no room."""
        tables: list[list[int]] = []
        wanted = 0
        for g, group in enumerate(self.groups):
            hits = device_tokens // group.block_tokens
            total = -(-until // group.block_tokens)
            needed = max(group.first_needed(until), 0)
            table = [
                (self.pool.find(g, sequence.keys[g][i]) or NULL_BLOCK) if i >= group.first_needed(device_tokens) else 0
                for i in range(hits)
            ]
            table += [-1 if i >= needed else NULL_BLOCK for i in range(hits, total)]
            wanted += table.count(-1)
            tables.append(table)
        hits_to_take = [block for table in tables for block in table if block > 0]
        self.pool.take(hits_to_take)
        fresh = self.pool.allocate(wanted)
        if fresh is None:
            self.pool.free(hits_to_take)
            return False
        for table, live in zip(tables, sequence.blocks, strict=True):
            live[:] = [fresh.pop() if block == -1 else block for block in table]
        for block in fresh:
            raise AssertionError(block)
        return True

    @rule(data=st.data(), tokens=st.integers(1, 40))
    def compute(self, data: st.DataObject, tokens: int) -> None:
        sequence = self.pick(data, "running")
        if sequence is not None:
            self.compute_tokens(sequence, tokens)

    @rule(
        root=st.integers(0, 1),
        branch=st.integers(0, 1),
        tokens=st.integers(8, 40),
        finishes=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
    )
    def serve(self, root: int, branch: int, tokens: int, finishes: bool, fails: bool) -> None:
        """One request from its arrival to its last token, copies included: what real life is made of."""
        self.arrive(root, branch, tokens)
        sequence = self.sequences[f"r{self.serial}"]
        self.place_sequence(sequence, share=1.0, keep=False)
        self.pump(fails)
        if sequence.state == "running":
            self.compute_tokens(sequence, tokens)
            if finishes:
                self.end(sequence)
        self.pump()

    def pump(self, fails: bool = False) -> None:
        """Plan, then let every copy end, well or not."""
        self.plan(idle=False)
        for copy_id, flight in list(self.in_flight.items()):
            for rank in sorted(flight.to_run):
                self.run_on_rank(flight, rank, fails)
            for rank in sorted(flight.to_report):
                self.report_rank(self.in_flight[copy_id], rank, twice=False)

    def compute_tokens(self, sequence: Sequence, tokens: int) -> None:
        until = min(sequence.tokens, sequence.computed + tokens)
        for g, group in enumerate(self.groups):
            missing = -(-until // group.block_tokens) - len(sequence.blocks[g])
            fresh = self.pool.allocate(max(0, missing))
            if fresh is None:
                return
            sequence.blocks[g] += fresh
        for g, group in enumerate(self.groups):
            for index in range(sequence.computed // group.block_tokens, -(-until // group.block_tokens)):
                self.write(sequence, g, index, full=(index + 1) * group.block_tokens <= until)
        sequence.computed = until
        self.manager.advance(sequence.name, until)
        self.drop_old_window_blocks(sequence)

    def write(self, sequence: Sequence, g: int, index: int, *, full: bool) -> None:
        block = sequence.blocks[g][index]
        assert block != NULL_BLOCK
        for copy in self.in_flight.values():
            assert block not in copy.copy.blocks or not copy.to_run or copy.failed, "I1: compute meets a copy"
        epoch = f"stale {sequence.name}" if sequence.stale else self.epoch
        content: Content = ("kv", epoch, g, sequence.keys[g][index]) if full else ("partial", sequence.name)
        for rank in range(self.ranks):
            self.device[rank][block] = content
        if full and not sequence.stale:
            parent = sequence.keys[g][index - 1] if index else None
            end_tokens = (index + 1) * self.groups[g].block_tokens
            self.pool.register(block, g, sequence.keys[g][index], parent, end_tokens)

    def drop_old_window_blocks(self, sequence: Sequence) -> None:
        for g, group in enumerate(self.groups):
            table = sequence.blocks[g]
            for index in range(min(group.first_needed(sequence.computed), len(table))):
                if table[index] != NULL_BLOCK:
                    self.pool.free([table[index]])
                    table[index] = NULL_BLOCK

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        sequence = self.pick(data, "waiting", "loading", "running")
        if sequence is not None:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        self.manager.finish(sequence.name)
        self.release(sequence)
        del self.sequences[sequence.name]

    @rule(data=st.data(), freed_first=st.booleans())
    def preempt(self, data: st.DataObject, freed_first: bool) -> None:
        sequence = self.pick(data, "running", "loading")
        if sequence is None:
            return
        if freed_first:
            self.release(sequence)
            self.manager.preempt(sequence.name)
        else:
            self.manager.preempt(sequence.name)
            self.release(sequence)
        sequence.state, sequence.computed, sequence.stale = "waiting", 0, False

    def release(self, sequence: Sequence) -> None:
        for table in sequence.blocks:
            self.pool.free(list(table))
            table.clear()

    @rule(dice=st.integers(0, 19))
    def reset(self, dice: int) -> None:
        if dice != 19:  # a reset undoes what makes the other rules interesting
            return
        self.pool.reset()
        self.manager.reset()
        self.epoch += 1
        for sequence in self.sequences.values():
            sequence.stale = sequence.state in ("running", "loading")

    # ------------------------------------------------------------------ copies

    @rule(idle=st.booleans())
    def plan(self, idle: bool) -> None:
        plan = self.manager.plan(idle=idle)
        for is_store, copies in ((False, plan.loads), (True, plan.stores)):
            for copy in copies:
                everyone = set(range(self.ranks))
                from_device = [self.device[0][block] for block in copy.blocks] if is_store else []
                content = from_device or [self.host[0, slot] for slot in copy.slots]
                self.in_flight[copy.id] = InFlight(copy, is_store, content, self.host, everyone, set(everyone))
        if self.link is not None:
            self.link.let_in()
        self.map(plan.pool)
        self.check_no_two_transfers_meet()

    def check_no_two_transfers_meet(self) -> None:
        stores = [flight for flight in self.in_flight.values() if flight.is_store]
        keys = [content for flight in stores for content in flight.content]
        assert len(keys) == len(set(keys)), "I7: one key is written by one transfer at a time"
        written = [(id(flight.host), slot) for flight in stores for slot in flight.copy.slots]
        written_blocks = [b for flight in self.in_flight.values() if not flight.is_store for b in flight.copy.blocks]
        loads = [flight for flight in self.in_flight.values() if not flight.is_store]
        read = {(id(flight.host), slot) for flight in loads for slot in flight.copy.slots}
        assert len(written) == len(set(written)), "I2: a slot is written by one transfer"
        assert not read & set(written), "I2: a slot that is read is not written"
        assert len(written_blocks) == len(set(written_blocks)), "I1: a device block is loaded by one transfer"
        assert not set(written_blocks) & {b for flight in stores for b in flight.copy.blocks}, "I1"

    @precondition(lambda self: any(flight.to_run for flight in self.in_flight.values()))
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def run_copy(self, data: st.DataObject, fails: bool) -> None:
        flight = self.in_flight[data.draw(st.sampled_from([i for i, f in self.in_flight.items() if f.to_run]))]
        self.run_on_rank(flight, data.draw(st.sampled_from(sorted(flight.to_run))), fails)

    def run_on_rank(self, flight: InFlight, rank: int, fails: bool) -> None:
        flight.to_run.discard(rank)
        if fails:
            flight.failed.add(rank)
        for block, slot in zip(flight.copy.blocks, flight.copy.slots, strict=True):
            if flight.is_store:
                flight.host[rank, slot] = ("torn",) if fails else self.device[rank][block]
            else:
                self.device[rank][block] = ("torn",) if fails else flight.host[rank, slot]

    @precondition(lambda self: any(flight.to_report - flight.to_run for flight in self.in_flight.values()))
    @rule(data=st.data(), twice=st.booleans())
    def report(self, data: st.DataObject, twice: bool) -> None:
        ids = [i for i, flight in self.in_flight.items() if flight.to_report - flight.to_run]
        flight = self.in_flight[data.draw(st.sampled_from(ids))]
        self.report_rank(flight, data.draw(st.sampled_from(sorted(flight.to_report - flight.to_run))), twice)

    def report_rank(self, flight: InFlight, rank: int, twice: bool) -> None:
        flight.to_report.discard(rank)
        if not flight.to_report:
            del self.in_flight[flight.copy.id]
        if rank in flight.failed:
            said = Report(rank, failed=((flight.copy.id, "injected"),))
        else:
            said = Report(rank, done=(flight.copy.id,))
        self.heed(said)
        if twice:
            self.heed(said)

    def heed(self, *reports: Report) -> None:
        outcome = self.manager.report(*reports)
        for name in outcome.loaded:
            sequence = self.sequences[name]
            assert sequence.state == "loading"
            sequence.state = "running"
            self.check_loaded(sequence)
        for name in outcome.failed:
            sequence = self.sequences[name]
            assert sequence.state == "loading"
            self.manager.preempt(name)
            self.release(sequence)
            sequence.state, sequence.computed, sequence.stale = "waiting", 0, False

    def check_loaded(self, sequence: Sequence) -> None:
        """I4: what the request resumes from is exactly what was computed for its keys, on every rank."""
        assert not sequence.stale, "a load from before a reset is not served"
        loaded = self.manager._requests[sequence.name].computed_tokens
        before, sequence.computed = sequence.computed, loaded
        assert before < loaded < sequence.tokens
        for g, group in enumerate(self.groups):
            for index in range(group.first_needed(loaded), loaded // group.block_tokens):
                block = sequence.blocks[g][index]
                key = sequence.keys[g][index]
                for rank in range(self.ranks):
                    assert self.device[rank][block] == ("kv", self.epoch, g, key)
                if index >= before // group.block_tokens:
                    parent = sequence.keys[g][index - 1] if index else None
                    self.pool.register(block, g, key, parent, (index + 1) * group.block_tokens)

    @rule(transfer_id=st.integers(10_000, 10_010), rank=st.integers(0, 5))
    def report_nonsense(self, transfer_id: int, rank: int) -> None:
        before = self.manager.metrics.reports_unknown
        self.heed(Report(rank, done=(transfer_id,)))
        assert self.manager.metrics.reports_unknown == before + 1

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def visible_keys_are_complete(self) -> None:
        """I3, against the event stream: a visible key has its bytes on every rank."""
        index = index_of(self.manager, self.link)
        if index is not self.index_seen:
            self.index_seen = index
            self.visible.clear()
        if self.link is None or self.link.life is not None:
            self.check_visible(index)

    def check_visible(self, index: LocalIndex) -> None:
        for event in index.host._events.take():
            if isinstance(event, Stored):
                for key in event.keys:
                    assert (event.group, key) not in self.visible
                    self.visible[event.group, key] = None
            elif isinstance(event, Removed):
                for key in event.keys:
                    del self.visible[event.group, key]
            elif isinstance(event, Cleared):
                self.visible.clear()
        for group, key in self.visible:
            slot = index.host.cached_slot(group, key)
            assert slot is not None
            for rank in range(self.ranks):
                assert self.host[rank, slot] == ("kv", self.epoch, group, key)
        assert len(self.visible) == index.fill().cached

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """I5 and I9."""
        gauges, fill = self.manager.gauges(), index_of(self.manager, self.link).fill()
        assert gauges.slots_free + gauges.slots_cached + gauges.slots_writing == gauges.slots
        assert min(fill.free, fill.cached, fill.slots - fill.free - fill.cached) >= 0
        assert gauges.store_pins <= self.budget
        in_use = {b for s in self.sequences.values() for table in s.blocks for b in table if b}
        copied = {b for flight in self.in_flight.values() for b in flight.copy.blocks}
        copied |= {b for load in self.manager._loads._planned for b in load.blocks}
        assert self.pool.num_free >= DEVICE_BLOCKS - len(in_use | copied) - gauges.store_pins
        assert self.pool.num_free <= DEVICE_BLOCKS - len(in_use | copied)

    def teardown(self) -> None:
        """I5 and I8: everything comes to an end, and then nothing is pinned."""
        if not hasattr(self, "manager"):
            return
        for sequence in list(self.sequences.values()):
            self.end(sequence)
        for _ in range(200):
            self.pump()
            self.heed()
            self.visible_keys_are_complete()
            if not self.manager.busy:
                break
        gauges, fill = self.manager.gauges(), index_of(self.manager, self.link).fill()
        assert not self.manager.busy
        assert fill.pinned == gauges.store_pins == gauges.backlog_blocks == 0
        assert fill.free + fill.cached == fill.slots
        assert self.pool.num_free == DEVICE_BLOCKS
        if self.link is not None:
            self.link.check_at_rest()
            assert self.manager._stores._asked_blocks == self.manager._stores._asks == 0


class EngineElsewhere(Engine):
    """The same engine, with an index that is elsewhere: the way there breaks, and the node begins anew."""

    kind = "at once"

    @rule(seconds=st.sampled_from([0.01, 0.2, 20.0]))
    def pass_time(self, seconds: float) -> None:
        assert self.link is not None
        self.manager.passed(min(seconds, 0.5))  # the ledger has deadlines of its own
        self.manager._index.passed(seconds)

    @rule(dice=st.integers(0, 9), restarts=st.booleans())
    def break_the_link(self, dice: int, restarts: bool) -> None:
        assert self.link is not None
        if dice < 9:
            return
        if restarts:
            self.link.node.restart()
        elif self.link.life is None:
            self.link.come()
        else:
            self.link.go_away()

    @rule()
    def be_told(self) -> None:
        """Answers come between two steps."""
        assert self.link is not None
        self.link.let_in()


class EngineWithASlowNode(EngineElsewhere):
    """Answers come a step later."""

    kind = "later"


for engine, examples in ((Engine, 150), (EngineElsewhere, 100), (EngineWithASlowNode, 100)):
    engine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=60, suppress_health_check=list(HealthCheck)
    )
TestEngine = Engine.TestCase
TestEngineElsewhere = EngineElsewhere.TestCase
TestEngineWithASlowNode = EngineWithASlowNode.TestCase
