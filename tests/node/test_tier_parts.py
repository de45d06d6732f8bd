"""Tiers of a node, piece by piece: what is held back, what is late, what fails, and how a stop ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvtide.core import FullAttention, NotLoaded
from kvtide.core.index.calls import Again, Found, LookUp, Offer, Reserve, Reserved, Settle
from kvtide.core.index.shared import SharedIndex
from kvtide.core.index.waiting import UNASKED_S
from kvtide.core.messages import Answer, Errand, Fetch, Sink
from kvtide.errors import ConfigError
from kvtide.node.arenas import NodeArena
from kvtide.node.described_groups import described
from kvtide.node.errors import Refused
from kvtide.node.hello import Hello, Role
from kvtide.node.loop import Loop
from kvtide.node.mapped import MappedArena
from kvtide.node.owners import Owner
from kvtide.node.spaces import Spaces
from kvtide.node.tiers.last_sinks import LastSinks
from kvtide.node.tiers.namespace import tier_namespace
from kvtide.node.tiers.node_tiers import NodeTiers, open_part
from kvtide.node.tiers.options import read_tiers
from kvtide.node.tiers.rows import described_tiers, tier_rows
from kvtide.node.tiers.space_tiers import SpaceTiers
from kvtide.tiers import Level, MemoryBackend, QueuedTier, TierStack
from kvtide.tiers.config import parse_tiers
from tests.core.index.bench import SIZE
from tests.core.index.deep import RANKS, deep_config
from tests.left_behind import Before
from tests.memory_node import local_index
from tests.node.support import SOON_S, no_threads, wait_until
from tests.support import keys_of, text
from tests.tiers.support import NAMESPACE
from tests.tiers.test_stack import ScriptedTier

OWNER, SLOTS, DEADLINE_S = 1, 16, 0.5
FULL = (FullAttention(SIZE),)


class Space:
    """An index with an engine, and tiers that a test scripts, one for each part."""

    def __init__(self) -> None:
        self.index = SharedIndex(local_index(deep_config(FULL, SLOTS)))
        self.index.attach(OWNER, SLOTS)
        self.tiers = SpaceTiers(self.index, RANKS, DEADLINE_S)
        self.scripted = [ScriptedTier() for _ in range(RANKS)]
        self.memory = [np.zeros((SLOTS, 4), dtype=np.uint8) for _ in range(RANKS)]
        self.last_id = 0

    def stacks(self) -> list[TierStack]:
        return [
            TierStack([Level(tier, DEADLINE_S)], lambda slot, memory=memory: memoryview(memory[slot]))  # type: ignore[misc]
            for tier, memory in zip(self.scripted, self.memory, strict=True)
        ]

    def keys(self, name: str, blocks: int) -> list[bytes]:
        return keys_of(text(name, blocks * SIZE), SIZE, 0)

    def store(self, name: str, blocks: int) -> None:
        offer = Offer(0, self.keys(name, blocks), None, SIZE, [], needs_prefix=False, touch=False)
        reserved = self.index.handle(OWNER, Reserve(1, [offer], blocks))
        assert isinstance(reserved, Reserved)
        self.index.handle(OWNER, Settle([run.id for run in reserved.taken[0].runs], kept=True))

    def look_up(self, name: str, blocks: int) -> int:
        """Begin to look up something that is not in memory; return the number of that look-up."""
        self.last_id += 1
        call = LookUp(self.last_id, [self.keys(name, blocks)], 0, blocks * SIZE + 1)
        assert self.index.handle(OWNER, call) == Found(self.last_id, waits=True)
        return self.last_id

    def again(self, id_: int) -> Found:
        found = self.index.handle(OWNER, Again(id_))
        assert isinstance(found, Found)
        return found


def drive(tiers: SpaceTiers, now_s: float) -> None:
    while tiers.drive(now_s):
        pass


def test_what_tiers_are_to_do_is_held_back_until_they_are_open() -> None:
    space = Space()
    space.store("a", 2)
    id_ = space.look_up("b", 2)
    drive(space.tiers, 0.0)
    assert (space.tiers.busy, space.again(id_).waits) == (True, True)
    space.tiers.opened(space.stacks())
    drive(space.tiers, 0.1)
    assert not space.tiers.busy
    assert [len(tier.records) for tier in space.scripted] == [2, 2]
    assert space.again(id_).missed == {NotLoaded.NOT_CACHED: 2 * SIZE}


def test_a_look_up_does_not_wait_until_sinks_have_begun() -> None:
    space = Space()
    space.tiers.opened(space.stacks())
    space.store("a", 2)
    id_ = space.look_up("b", 2)
    space.tiers.drive(0.0, sinks=False)
    assert space.again(id_).missed == {NotLoaded.NOT_CACHED: 2 * SIZE}
    assert [len(tier.records) for tier in space.scripted] == [0, 0]
    assert not space.tiers.at_rest
    drive(space.tiers, 0.1)
    assert [len(tier.records) for tier in space.scripted] == [2, 2]
    assert space.tiers.at_rest


def test_nobody_waits_longer_than_a_deadline_for_tiers_that_are_being_opened() -> None:
    space = Space()
    id_ = space.look_up("b", 2)
    drive(space.tiers, 0.0)
    drive(space.tiers, DEADLINE_S / 2)
    assert space.again(id_).waits
    drive(space.tiers, DEADLINE_S)
    assert space.again(id_).missed == {NotLoaded.TIER_LATE: 2 * SIZE}
    assert not space.tiers.busy
    space.tiers.opened(space.stacks())
    drive(space.tiers, 2 * DEADLINE_S)
    assert space.index.counts()["leased"] == 0


def test_f29_time_passes_for_an_engine_that_does_not_ask_again_though_no_tier_has_anything_to_do() -> None:
    space = Space()
    space.tiers.opened(space.stacks())
    space.look_up("b", 2)
    drive(space.tiers, 0.0)
    for second in range(int(UNASKED_S)):
        assert (space.tiers.time_counts, space.tiers.busy, space.tiers.at_rest) == (True, False, True)
        drive(space.tiers, second + 1.0)
    assert (space.tiers.time_counts, space.index.counts()["waiting"]) == (False, 0)


def test_without_tiers_that_can_be_opened_all_is_a_miss_and_nothing_is_kept_up() -> None:
    space = Space()
    space.store("a", 5)
    id_ = space.look_up("b", 2)
    drive(space.tiers, 0.0)
    space.tiers.failure = "the disk is gone"
    space.tiers.opened([])
    drive(space.tiers, 0.1)
    assert space.again(id_).missed == {NotLoaded.NOT_CACHED: 2 * SIZE}
    assert (space.tiers.sinking_blocks, space.tiers.busy, space.tiers.at_rest) == (0, False, True)
    space.store("c", 5)
    drive(space.tiers, 0.2)
    assert space.tiers.sinking_blocks == 0


def test_a_part_that_does_not_answer_makes_a_fetch_late_and_its_slots_stay_its_own() -> None:
    space = Space()
    space.tiers.opened(space.stacks())
    for number in range(4):
        space.store(f"{number}", 8)
        drive(space.tiers, 0.0)
    id_ = space.look_up("0", 2)
    for tier in space.scripted:
        tier.silent = True
    space.scripted[0].silent = False
    drive(space.tiers, 0.0)
    space.scripted[1].speak()  # the look-up, and from then on nothing
    drive(space.tiers, 0.0)
    assert space.again(id_).waits
    assert space.tiers.busy
    space.tiers._stacks[1]._clock = lambda: 1e9  # type: ignore[index]
    drive(space.tiers, 0.1)
    assert space.again(id_).missed == {NotLoaded.TIER_LATE: 2 * SIZE}
    counts = space.index.counts()
    assert counts["free"] + counts["cached"] == SLOTS - 2
    space.scripted[1].speak()
    drive(space.tiers, 0.2)
    counts = space.index.counts()
    assert (counts["free"] + counts["cached"], space.tiers.busy) == (SLOTS, False)


# ---------------------------------------------------------------------- all namespaces


class Looping:
    """A loop in a thread, and tiers of a node in it."""

    def __init__(self, *tiers: object) -> None:
        self.lines: list[str] = []
        self.loop = Loop(tick_s=0.05)
        self.tiers = NodeTiers(parse_tiers(list(tiers)), self.loop, self.lines.append)
        self.ticks: list[Callable[[float], None]] = []
        self._thread = threading.Thread(target=self.loop.run, args=(self._tick,))
        self._thread.start()

    def _tick(self, now_s: float) -> None:
        for tick in self.ticks:
            tick(now_s)

    def close(self) -> None:
        self.loop.post(self.loop.stop)
        self._thread.join(SOON_S)
        self.tiers.close()
        self.tiers.close()
        self.loop.close()


def test_tiers_that_cannot_be_opened_are_a_line_and_the_engine_serves(tmp_path: Path) -> None:
    looping = Looping({"type": "disk", "path": str(tmp_path), "size": "1MiB"})
    space = Space()
    arena = NodeArena(0, SLOTS, 1 << 20)
    looping.tiers.add("0" * 16, space.index, {}, [(arena, {})] * RANKS, 0.5)
    wait_until(lambda: looping.lines)
    assert "namespace 0000000000000000 has no tiers: tiers[0].size=524288: expected at least" in looping.lines[0]
    (row,) = looping.tiers.status("0" * 16)
    assert (row["state"], "expected at least" in str(row["failure"])) == ("not open", True)
    assert looping.tiers.status("1" * 16) == []
    looping.close()
    arena.close()


def test_f9_a_clear_says_that_tiers_which_are_not_open_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeTiers, "_begin", lambda *_: False)
    loop = Loop()
    spaces = Spaces(1000, lambda _: None, tiers=NodeTiers(parse_tiers([{"type": "null"}]), loop, lambda _: None))
    owner = Owner(1, "engine", "")
    hello = Hello(Role.SCHEDULER, namespace={"parts": [100], "groups": described(FULL)})
    spaces.attach(owner, hello)
    spaces.join(owner, hello)
    with pytest.raises(Refused, match="0 blocks in memory forgotten, but not what its tiers hold, which are not open"):
        spaces.clear(owner.namespace)
    spaces.close()
    loop.close()


def test_a_namespace_that_is_given_up_lets_go_of_its_tiers_and_its_memory(tmp_path: Path) -> None:
    looping = Looping({"type": "disk", "path": str(tmp_path), "size": "8MiB"})
    space = Space()
    arenas = [NodeArena(part, SLOTS, 4096) for part in range(RANKS)]
    before = Before()
    looping.tiers.add("0" * 16, space.index, {}, [(arena, {}) for arena in arenas], 1.0)
    wait_until(lambda: looping.tiers.status("0" * 16)[0]["state"] == "closed")
    done = threading.Event()
    looping.loop.post(lambda: (looping.tiers.remove("0" * 16), done.set())[0])  # type: ignore[func-returns-value]
    assert done.wait(SOON_S)
    wait_until(lambda: not before.new_threads)
    assert looping.tiers.status("0" * 16) == []
    for _ in range(3):  # given up and wanted again at once
        looping.tiers.add("0" * 16, space.index, {}, [(arena, {}) for arena in arenas], 1.0)
        looping.tiers.remove("0" * 16)
    looping.tiers.add("0" * 16, space.index, {}, [(arena, {}) for arena in arenas], 1.0)
    wait_until(lambda: looping.tiers.status("0" * 16)[0]["state"] == "closed")
    assert looping.lines == []
    looping.close()
    for arena in arenas:
        arena.close()


def test_blocks_that_do_not_pack_sink_from_their_rows_and_come_back_to_rows(tmp_path: Path) -> None:
    arena = NodeArena(0, 300, 1552, row_bytes=2048)
    engine = MappedArena(arena.descriptor, arena.description).unpacked
    configs = parse_tiers([{"type": "disk", "path": str(tmp_path), "size": "8MiB", "deadline_ms": 10_000}])
    stack = open_part(configs, NAMESPACE, 0, arena.mapped)

    def hits(errand: Errand) -> tuple[int, ...]:
        stack.start(errand)
        found: list[Answer] = []

        def has_answered() -> bool:
            found.extend(stack.poll()[0])
            return bool(found)

        wait_until(has_answered)
        return tuple(found[0].hits)

    def row_of(slot: int) -> int:
        assert engine is not None
        return int(engine.rows_of(np.array([slot]))[0])

    assert engine is not None
    assert engine.place(np.array([3])) == []
    engine.arena.memory[row_of(3)] = 9
    arena.mapped.memory[4] = 7
    names = ((0, b"does not pack"), (0, b"packs"))
    assert hits(Sink(1, names, (3, 4))) == (0, 1)
    engine.forget(np.array([3]))
    engine.arena.memory[:] = arena.mapped.memory[:] = 0
    assert hits(Fetch(2, names, (10, 11))) == (0, 1)
    assert (row_of(10), row_of(11)) == (0, -1)
    assert (engine.arena.memory[0] == 9).all()
    assert (arena.mapped.memory[11] == 7).all()
    assert stack.close(SOON_S)
    arena.close()


def test_a_stop_waits_for_what_sinks_but_not_for_ever() -> None:
    space = Space()
    lines: list[str] = []
    loop = Loop()
    tiers = NodeTiers((), loop, lines.append)
    tiers._spaces["x"] = space.tiers
    space.tiers.opened(space.stacks())
    for tier in space.scripted:
        tier.silent = True
    space.store("a", 4)
    last = LastSinks(tiers, lines.append, sink_s=12.0)
    assert not last.are_over(100.0)
    assert lines == ["4 blocks left to sink to the tiers, for at most 12 s; stop again to end at once"]
    assert not last.are_over(101.0)
    assert not last.are_over(106.0)
    assert lines[1:] == ["4 blocks left to sink to the tiers, for at most 6 s; stop again to end at once"]
    assert last.are_over(112.0)
    assert lines[2:] == ["4 blocks not sunk to the tiers within 12 s, and lost"]
    for tier in space.scripted:
        tier.silent = False
        tier.speak()
    tiers.drain()
    while not tiers.at_rest:
        tiers._drive()
    assert LastSinks(tiers, lines.append).are_over(113.0)
    assert len(lines) == 3
    loop.close()


def test_f29_a_node_that_can_start_no_thread_has_no_tiers_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Before()
    lines: list[str] = []
    loop = Loop()
    tiers = NodeTiers(parse_tiers([{"type": "null"}]), loop, lines.append)
    arena = NodeArena(0, SLOTS, 4)
    with monkeypatch.context() as patched:
        no_threads(patched)
        tiers.add("x", Space().index, {}, [(arena, {})], 1.0)
        assert lines == ["namespace x has no tiers: the system has no thread for them"]
        assert tiers.status("x")[0]["failure"] == "the system has no thread for them"
        tiers.remove("x")
    tiers.close()
    arena.close()
    loop.close()
    before.check()


# ---------------------------------------------------------------------- words


def test_tiers_are_written_as_json_or_as_names_and_values(tmp_path: Path) -> None:
    as_json = f'{{"type": "disk", "path": "{tmp_path}", "size": "1MiB", "threads": 2}}'
    as_pairs = f"type=disk, path={tmp_path},size=1MiB,threads=2"
    assert read_tiers("tier", as_json) == read_tiers("tier", [as_pairs]) == read_tiers("tier", [json.loads(as_json)])
    assert read_tiers("tier", []) == ()
    with pytest.raises(ConfigError, match="tier=5: expected a list of tiers"):
        read_tiers("tier", 5)


def test_every_word_of_the_engine_and_of_the_worker_makes_another_namespace() -> None:
    described = {"model": "m", "weights": "1", "groups": [{"kind": "FullAttention"}], "seed": None}
    known = {"layout": "layers", "attention": "flash"}
    first = tier_namespace(described, known, 1000, 2)
    assert first.digest == tier_namespace(dict(reversed(described.items())), known, 1000, 2).digest
    others = [
        tier_namespace({**described, "seed": "0"}, known, 1000, 2),
        tier_namespace(described, {**known, "layout": "heads"}, 1000, 2),
        tier_namespace(described, {}, 1000, 2),
        tier_namespace(described, known, 999, 2),
        tier_namespace(described, known, 1000, 1),
        first.for_rank(1),
    ]
    assert len({namespace.digest for namespace in [first, *others]}) == len(others) + 1
    (difference,) = first.differences(others[0].manifest())
    assert difference.startswith("engine.seed: stored ")


def test_rows_are_those_of_all_parts_together() -> None:
    configs = parse_tiers([{"type": "null"}])
    backend = MemoryBackend()
    tier = QueuedTier(backend, threads=1)
    assert tier.lookup(1, [b"a", b"b"])
    assert tier.wait(SOON_S)
    stats = tier.stats()
    stats.bytes_used = 10
    (row,) = tier_rows(configs, [{"null": stats}, {"null": stats}], "")
    assert row["keys"] == {"lookup miss": 4}
    assert (row["state"], row["bytes_used"]) == ("closed", 20)
    stats.breaker, stats.bytes_used = "open", None
    (row,) = tier_rows(configs, [{"null": tier.stats()}, {"null": stats}], "")
    assert row["state"] == "open"
    assert list(described_tiers({"tiers": [row]})) == [
        "  tier       null (null:): switched off after failures, 0 bytes put, 0 bytes got"
    ]
    tier.close()
