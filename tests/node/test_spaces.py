"""Namespaces: the same description is the same memory, another one is apart and says why."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest

from kvtide.copy import numa
from kvtide.core import ChunkedLocal, FullAttention, NotStored, SlidingWindow, StateSpace
from kvtide.core.index import calls
from kvtide.core.index.shared import SharedIndex
from kvtide.node.codec import call_frame
from kvtide.node.described_groups import described, groups_of
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import Frame, Kind
from kvtide.node.hello import Hello, Role
from kvtide.node.lines import ROUTINE_MAX
from kvtide.node.namespaces import name_of, unlike
from kvtide.node.owners import Owner
from kvtide.node.shares import Share
from kvtide.node.space import Space, make_index
from kvtide.node.spaces import Spaces
from tests.node.support import wait_until

GROUPS = [{"kind": "FullAttention", "block_tokens": 16}]
MODEL: dict[str, Any] = {"model": "m", "hash": "sha256", "seed": "0", "parts": [1000, 500], "groups": GROUPS}


def hello(engine: str = "engine", part: int = 0, **changed: object) -> Hello:
    return Hello(Role.SCHEDULER, engine=engine, part=part, namespace={**MODEL, **changed})


def test_a_description_is_known_by_its_content_and_not_by_its_order() -> None:
    turned = dict(reversed(MODEL.items()))
    assert name_of(MODEL) == name_of(turned)
    assert name_of(MODEL) != name_of({**MODEL, "seed": "1"})
    assert name_of(MODEL) != name_of({**MODEL, "seed": 0})


def test_what_differs_is_said_by_name_against_the_one_that_is_most_alike() -> None:
    others = [{**MODEL, "seed": "1"}, {"model": "else"}]
    assert unlike(MODEL, others) == 'seed is "0", not "1"'
    assert unlike(MODEL, []) == ""
    assert unlike({**MODEL, "two\nlines \ud800": 1}, [MODEL]) == r"two\nlines \ud800 is 1, not missing"
    assert unlike({}, [MODEL]).startswith('model is missing, not "m", ')
    assert unlike({}, [MODEL]).endswith('hash is missing, not "sha256" and 2 more')


def test_f23_of_long_values_that_part_is_said_in_which_they_differ() -> None:
    long = {**MODEL, "model": f"Model({'layers=2, ' * 8}seed=0, {'heads=2, ' * 8})"}
    other = {**long, "model": long["model"].replace("seed=0", "seed=1")}
    ours, theirs = (f"…s=2, seed={seed}, heads=2, heads=2, heads=2, …" for seed in (0, 1))
    assert unlike(long, [other]) == f"model is {ours}, not {theirs}"
    assert unlike(MODEL, [long]) == f'model is "m", not "Model({"layers=2, " * 3}lay…'


def test_engines_with_the_same_description_share_and_another_seed_is_told_apart() -> None:
    lines: list[str] = []
    spaces = Spaces(3000, lines.append)
    first, second, other = (Owner(number, "e", "") for number in range(3))
    assert spaces.attach(first, hello()) == {"slots": 2, "unlike": "", "room": ""}
    assert spaces.attach(second, hello("second")) == {"slots": 2, "unlike": "", "room": ""}
    assert first.namespace == second.namespace
    with pytest.raises(Refused, match=r'no room .* engine other shares nothing with the others: seed is "1", not "0"'):
        spaces.attach(other, hello("other", seed="1"))
    assert spaces.status()["free_bytes"] == 0
    spaces.close()


def test_a_namespace_beside_another_one_says_so() -> None:
    lines: list[str] = []
    spaces = Spaces(3000, lines.append)
    spaces.attach(Owner(1, "large", ""), hello("large", parts=[1400]))
    assert spaces.attach(Owner(2, "small", ""), hello("small", parts=[1])) == {
        "slots": 200,
        "unlike": "parts is [1], not [1400]",
        "room": "200 bytes of 2.93 KiB: other models have the rest",
    }
    status: Any = spaces.status()
    large, small = (namespace["name"] for namespace in status["namespaces"])
    assert lines == [
        f"engine large has come: m, namespace {large} (2 slots of 1.367 KiB)",
        "engine small shares nothing with the others: parts is [1], not [1400]",
        "engine small has 200 bytes of 2.93 KiB: other models have the rest",
        f"engine small has come: m, namespace {small} (200 slots of 1 byte)",
    ]
    spaces.close()


def test_engines_that_come_and_go_are_said_but_not_all_of_a_crowd() -> None:
    lines: list[str] = []
    spaces = Spaces(3000, lines.append)
    owners = [Owner(number, f"e{number}", "") for number in range(ROUTINE_MAX)]
    for owner in owners[:2]:
        spaces.attach(owner, hello())
    name = owners[0].namespace
    for owner in owners[:2]:
        spaces.ending(owner)
        spaces.over(owner)
    assert [line.partition(":")[0] for line in lines] == [
        "engine e0 has come",
        "engine e1 has come",
        "engine e0 has ended",
        "engine e1 has ended",
    ]
    assert lines[2:] == [
        "engine e0 has ended",
        f"engine e1 has ended: no engine uses namespace {name} now, and its blocks are kept",
    ]
    for owner in owners:
        spaces.attach(owner, hello())
    assert len(lines) == ROUTINE_MAX
    spaces.clear(name)
    assert "was cleared" in lines[-1], "what matters is said all the same"
    spaces.close()


class Told:
    """What a node sends to engines that have not asked."""

    def __init__(self, spaces: Spaces) -> None:
        self.frames: list[tuple[int, Frame]] = []
        spaces.send = lambda owner, frame: self.frames.append((owner.number, frame))

    def take(self) -> dict[int, str]:
        frames, self.frames = self.frames, []
        assert all(frame.kind == Kind.NOTICE for _, frame in frames)
        return {number: frame.body.decode() for number, frame in frames}


def test_f23_those_who_are_there_are_told_of_an_engine_that_shares_nothing_with_them() -> None:
    spaces = Spaces(8_000, lambda _: None, shares=[Share("", 25.0)])
    told = Told(spaces)
    spaces.attach(Owner(1, "e", ""), hello())
    spaces.attach(Owner(2, "e", ""), hello())
    spaces.attach(Owner(3, "e", ""), replace(hello(), takes_notices=False))
    assert told.take() == {}
    spaces.attach(Owner(4, "e", ""), hello("other", seed="1"))
    line = 'engine other has come, and shares nothing with this one: seed is "0", not "1"'
    assert told.take() == {1: line, 2: line}, "an engine of before would take it for a mistake"
    spaces.attach(Owner(5, "e", ""), hello("other", seed="1"))
    assert told.take() == {}
    spaces.attach(Owner(6, "e", ""), hello("third", seed="1", hash="other"))
    line = 'engine third has come, and shares nothing with this one: hash is "sha256", not "other"'
    assert told.take() == {4: line, 5: line}, "those who are most alike"
    spaces.attach(Owner(7, "e", ""), hello("private", private="x"))
    assert told.take() == {}, "it has other weights than all others, and knows that"
    spaces.close()


def test_who_comes_back_to_a_namespace_is_told_of_others_that_are_in_use() -> None:
    spaces = Spaces(6_000, lambda _: None, shares=[Share("", 50.0)])
    first, other = Owner(1, "e", ""), Owner(2, "e", "")
    spaces.attach(first, hello())
    spaces.attach(other, hello(seed="1"))
    assert spaces.attach(Owner(3, "e", ""), hello())["unlike"] == 'seed is "0", not "1"'
    spaces.over(other)
    assert spaces.attach(Owner(4, "e", ""), hello())["unlike"] == ""
    spaces.close()


def test_slots_are_ready_when_every_part_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    spaces = Spaces(1_500_000, lines.append)
    owner = Owner(1, "e", "")
    spaces.attach(owner, hello())
    (space,) = spaces._spaces.values()
    (arena,) = spaces.join(owner, hello(part=0))
    assert spaces.join(owner, hello(part=0)) == [arena]
    wait_until(lambda: arena.ready_slots == 1000)
    assert space.ready_slots == 0, "the other part has no memory yet"
    spaces.join(owner, hello(part=1))
    wait_until(lambda: space.ready_slots == 1000)
    with pytest.raises(Refused, match="part 2 of a block that has 2"):
        spaces.join(owner, hello(part=2))
    wait_until(lambda: len(lines) == 5)
    assert sum(": 1,000 slots of " in line for line in lines) == 2
    assert sum(": 1,000 of 1,000 slots are ready, " in line for line in lines) == 2
    spaces.close()


def worker(layout: str, part: int = 0, rank: int = 0, **more: object) -> Hello:
    return Hello(Role.WORKER, engine="engine", part=part, rank=rank, namespace={"layout": layout, **more})


def test_a_worker_that_holds_other_bytes_than_the_first_one_of_its_part_is_refused_for_good() -> None:
    spaces = Spaces(15_000, lambda _: None)
    owner = attached(spaces)
    spaces.join(owner, worker("keys, then values"))
    spaces.join(owner, worker("keys, then values", rank=1))
    spaces.join(owner, worker("values, then keys", part=1))
    with pytest.raises(Refused) as refused:
        spaces.join(owner, worker("values, then keys", rank=2))
    said = 'in part 0, layout is "values, then keys", not "keys, then values"'
    assert refused.value.why == f"rank 2 of engine engine holds other bytes than those who were here first: {said}"
    assert refused.value.for_good
    spaces.close()


def test_a_worker_whose_blocks_have_another_size_than_its_scheduler_says_is_refused_for_good() -> None:
    spaces = Spaces(15_000, lambda _: None)
    owner = attached(spaces)
    spaces.join(owner, worker("same", block_bytes=1000))
    with pytest.raises(Refused, match="blocks of 1000 bytes in part 1, not 500") as refused:
        spaces.join(owner, worker("same", part=1, rank=1, block_bytes=1000))
    assert refused.value.for_good
    spaces.close()


def test_where_blocks_are_packed_rows_are_part_of_the_memory_and_of_no_more_than_that() -> None:
    lines: list[str] = []
    spaces = Spaces(16 << 20, lines.append)
    owner = Owner(1, "e", "")
    packed = hello(parts=[1552, 3104], rows=[2048, 4096])
    spaces.attach(owner, packed)
    (space,) = spaces._spaces.values()
    arenas = [spaces.join(owner, replace(packed, part=part))[0] for part in (0, 1)]
    assert 0.9 * (16 << 20) < space.nbytes == sum(arena.description.used_bytes for arena in arenas) <= 16 << 20
    wait_until(lambda: space.ready_slots == space.slots)
    for arena, row_bytes in zip(arenas, (2048, 4096), strict=True):
        assert arena.mapped.unpacked is not None
        rows = arena.mapped.unpacked.arena
        assert (rows.slots, rows.slot_bytes) == (space.slots // 100, row_bytes)
    spaces.close()


def test_memory_in_which_rows_alone_fill_all_is_too_little() -> None:
    with pytest.raises(Refused, match=r"one block takes .* MiB, and it may have 1 MiB of the node's memory") as refused:
        Spaces(1 << 20, lambda _: None).attach(Owner(1, "e", ""), hello(parts=[1552], rows=[2048]))
    assert refused.value.for_good


def test_memory_is_next_to_the_gpu_of_who_comes_first_and_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "nodes", lambda: {0, 1})
    monkeypatch.setattr(numa, "prefer_node", lambda *_: None)
    lines: list[str] = []
    spaces = Spaces(15_000, lines.append)
    first, second = attached(spaces, 1), attached(spaces, 2)
    for owner, numa_nodes in ((first, (0, 0, 1)), (second, (0, 1, 1))):
        for rank, numa_node in enumerate(numa_nodes):  # the last two ranks hold the same bytes
            spaces.join(owner, replace(worker("same", part=min(rank, 1), rank=rank), numa_node=numa_node))
    far = "memory of NUMA node 0 and a GPU next to NUMA node 1"
    assert (first.far, second.far) == ({2: far}, {1: far, 2: far})
    assert [line.partition(" (a ")[0] for line in lines if "GPU" in line] == [
        f"rank 2 of engine engine 1 has {far}: copies are slower",
        f"rank 1 of engine engine 2 has {far}: copies are slower",
    ]
    spaces.close()


def test_memory_that_cannot_be_made_is_a_refusal_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(24, "Too many open files")

    spaces = Spaces(15_000, lambda _: None)
    owner = Owner(1, "e", "")
    spaces.attach(owner, hello())
    monkeypatch.setattr("os.memfd_create", fail)
    with pytest.raises(Refused, match=r"the node cannot make memory for part 0 \(.*Too many open files\)") as refused:
        spaces.join(owner, hello())
    assert not refused.value.for_good


def attached(spaces: Spaces, number: int = 1) -> Owner:
    owner = Owner(number, f"engine {number}", "")
    spaces.attach(owner, hello())
    return owner


def test_a_frame_that_is_no_call_is_refused() -> None:
    spaces = Spaces(100_000, lambda _: None)
    with pytest.raises(BadFrame, match="a kind that is not known: 90"):
        spaces.handle(attached(spaces), Frame(90))


def test_a_call_that_makes_no_sense_for_this_model_is_refused() -> None:
    spaces = Spaces(100_000, lambda _: None)
    call = calls.LookUp(1, [[b"key"], [b"key"]], 0, 16, [0, 0])
    with pytest.raises(BadFrame, match="another idea of the model's groups"):
        spaces.handle(attached(spaces), call_frame(call))


def test_what_was_given_back_is_found_when_the_next_namespace_comes() -> None:
    spaces = Spaces(100_000, lambda _: None)
    owner = attached(spaces)
    space = spaces._spaces.pop(owner.namespace)
    space.unlike = space  # type: ignore[assignment]  # something that refers to itself
    gone = weakref.ref(space.index)
    space.budget.taken_bytes = 0
    del space
    assert gc.get_freeze_count(), "what is there for long is not looked through"
    attached(spaces, 2)
    assert gone() is None


def test_slots_can_be_used_as_soon_as_every_part_has_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = Spaces(9000, lambda _: None)
    owner = attached(spaces)
    space = spaces._spaces[owner.namespace]
    for ready in (0, 1, 4, 4, space.slots, space.slots):
        monkeypatch.setattr(Space, "ready_slots", ready)
        spaces.handle(owner, call_frame(calls.Ready(ready)))
        assert space.index.counts()["free"] == ready


def test_an_engine_that_is_found_to_be_gone_is_told_nothing_more() -> None:
    spaces = Spaces(100_000, lambda _: None)
    writer, gone = attached(spaces, 1), attached(spaces, 2)
    index = spaces._spaces[writer.namespace].index
    index.grow(8)
    offers = [calls.Offer(0, [key], None, 16, [], needs_prefix=False, touch=False) for key in (b"a", b"b")]
    for owner in (writer, gone):
        spaces.handle(owner, call_frame(calls.Ready(8)))
        spaces.handle(owner, call_frame(calls.Reserve(1, offers, 8)))
    told: list[Owner] = []

    def send(owner: Owner, _: Frame) -> None:
        told.append(owner)
        spaces.ending(owner)
        spaces.over(owner)

    spaces.send = send
    spaces.ending(writer)
    spaces.over(writer)
    assert told == [gone], "of the first of two blocks that nobody has written"


def test_a_call_whose_answer_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.node.spaces.BODY_BYTES_MAX", 8)
    spaces = Spaces(100_000, lambda _: None)
    with pytest.raises(BadFrame, match="a call whose answer takes"):
        spaces.handle(attached(spaces), call_frame(calls.LookUp(1, [[b"key"]], 0, 16, [0])))


@pytest.mark.parametrize(
    "groups",
    [
        None,
        [],
        [{}],
        [{"kind": "Other", "block_tokens": 16}],
        [{"kind": "FullAttention"}],
        [{"kind": "FullAttention", "block_tokens": 0}],
        [{"kind": "FullAttention", "block_tokens": True}],
        [{"kind": "SlidingWindow", "block_tokens": 16}],
        [{"kind": "FullAttention", "block_tokens": 16}] * 300,
        "x",
        [1],
    ],
)
def test_groups_that_make_no_sense_are_no_namespace(groups: object) -> None:
    spaces = Spaces(100_000, lambda _: None)
    with pytest.raises(BadFrame, match="a namespace with"):
        spaces.attach(Owner(1, "engine", ""), hello(groups=groups))


def test_groups_come_back_as_they_were_described() -> None:
    groups = (FullAttention(16), SlidingWindow(16, 64), ChunkedLocal(16, 64), StateSpace(64))
    assert groups_of({"groups": json.loads(json.dumps(described(groups)))}) == groups


def test_f4_what_other_engines_write_is_not_waited_for_where_pages_are_still_to_come() -> None:
    """It ends with no news of slots: an engine that asked again and again would never rest."""
    index, _ = make_index((FullAttention(16),), 8, "prefix", 1, None)
    shared = SharedIndex(index)
    shared.grow(2)
    for owner in (1, 2):
        shared.attach(owner, 8)

    def reserve(owner: int, text: bytes) -> calls.Taken:
        offer = calls.Offer(0, [text + b"0", text + b"1"], None, 16, [], needs_prefix=True, touch=False)
        reply = shared.handle(owner, calls.Reserve(1, [offer], 8))
        assert isinstance(reply, calls.Reserved)
        return reply.taken[0]

    assert reserve(1, b"a").runs
    assert (reserve(2, b"b").left, reserve(2, b"b").refused) == ([], {NotStored.HOST_FULL: 2})
