"""Who has how much of a node's memory, and from when on somebody else may have it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kvtide.copy.memory_left import MemoryLeft
from kvtide.errors import ConfigError
from kvtide.node import room
from kvtide.node.arenas import NodeArena
from kvtide.node.errors import Refused
from kvtide.node.hello import Hello, Role
from kvtide.node.owners import Owner
from kvtide.node.shares import Budgets, Share, read_shares
from kvtide.node.spaces import Spaces
from tests.left_behind import Before
from tests.node.support import SOON_S, no_threads, wait_until

BLOCK = 1000
GROUPS = [{"kind": "FullAttention", "block_tokens": 16}]


class Rig:
    """Namespaces, and engines that come and go."""

    def __init__(self, blocks: int, *shares: str) -> None:
        self.lines: list[str] = []
        self.spaces = Spaces(blocks * BLOCK, self.lines.append, shares=read_shares("share", shares))
        self._numbers = 0

    def come(self, model: str, **more: object) -> tuple[Owner, Any]:
        """Attach an engine, with its worker; return what it is told."""
        self._numbers += 1
        owner = Owner(self._numbers, f"e{self._numbers}", "")
        namespace = {"model": model, "parts": [BLOCK], "groups": GROUPS, **more}
        hello = Hello(Role.SCHEDULER, engine=owner.engine, namespace=namespace)
        told = self.spaces.attach(owner, hello)
        self.spaces.join(owner, hello)
        return owner, told

    def come_at_last(self, model: str, **more: object) -> tuple[Owner, Any]:
        """Try again until memory has been given back."""
        wait_until(self._is_given_back)
        try:
            return self.come(model, **more)
        except Refused:  # that has only begun it
            wait_until(self._is_given_back)
            return self.come(model, **more)

    def _is_given_back(self) -> bool:
        self.spaces.status()
        return not self.spaces._room._giving_back._under_way

    def go(self, owner: Owner) -> None:
        self.spaces.ending(owner)
        self.spaces.over(owner)

    @property
    def status(self) -> Any:
        return self.spaces.status()

    @property
    def models(self) -> list[str]:
        return [namespace["model"] for namespace in self.status["namespaces"]]


@pytest.fixture
def rig() -> Iterator[Rig]:
    before = Before()
    rig = Rig(10)
    yield rig
    rig.spaces.close()
    before.check()


def test_f29_memory_is_given_back_by_a_node_that_can_start_no_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, _ = rig.come("a", private="1")
    with monkeypatch.context() as patched:
        no_threads(patched)
        rig.go(owner)
    assert rig.status["free_bytes"] == 10 * BLOCK


# ---------------------------------------------------------------------- what people write


def test_shares_are_read() -> None:
    read = read_shares("share", ["org/a=b=40%", " 12.5% ", "c=60%"])
    assert read == (Share("org/a=b", 40), Share("", 12.5), Share("c", 60))
    assert read_shares("share", "a=40%") == (Share("a", 40),)
    assert read_shares("share", ()) == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a"], "a model and its share, such as MODEL=40%"),
        (["a=40"], "a model and its share"),
        (["a=0%"], "a share above 0 and at most 100%"),
        (["a=101%"], "a share above 0 and at most 100%"),
        (["2000%"], "a share above 0 and at most 100%"),
        (["a=-1%"], "a model and its share"),
        (["=40%"], "a model and its share"),
        ([40], "a model and its share"),
        (["a=40%", "a=20%"], "one share for a, and there is another one"),
        (["40%", "20%"], "one share for all others, and there is another one"),
        (["a=60%", "b=41%"], "together at most 100%, and these are 101%"),
        ({"a": "40%"}, "a list of texts"),
        (40, "a list of texts"),
    ],
)
def test_shares_that_make_no_sense_are_refused_by_name(values: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"share=.*: expected .*{message}"):
        read_shares("share", values)


def test_shares_that_are_too_many_together_are_shown_as_they_were_written() -> None:
    with pytest.raises(ConfigError, match=r"^share='a=60%, b=50%': expected shares of together at most 100%"):
        read_shares("share", ("a=60%", "b=50%"))


def test_a_share_is_found_by_a_models_name_or_the_last_part_of_it() -> None:
    budgets = Budgets(1000, read_shares("share", ["org/a=10%", "a=20%", "b=30%", "25%"]))
    sizes = {name: budgets.of({"model": name}).nbytes for name in ("org/a", "a", "other/a", "/models/b/", "ab")}
    assert sizes == {"org/a": 100, "a": 200, "other/a": 200, "/models/b/": 300, "ab": 400}
    assert budgets.of({}).each_bytes == 250
    assert budgets.of({"model": 7}).each_bytes == 250
    assert budgets.free_bytes == 1000


# ---------------------------------------------------------------------- without shares


def test_the_first_model_takes_all_memory_and_another_one_is_told_what_to_do(rig: Rig) -> None:
    assert rig.come("a")[1] == {"slots": 10, "unlike": "", "room": ""}
    why = (
        r"no room for the model of engine e2: 0 bytes are left of the node's memory, and one block takes 1000 bytes: "
        r"end the engines of a, or start the node with a --share for each model; engine e2 shares nothing with the "
        r'others: model is "b", not "a"'
    )
    with pytest.raises(Refused, match=why) as refused:
        rig.come("b")
    assert not refused.value.for_good, "it gets room when the other one has gone"


def test_memory_that_others_have_taken_since_the_start_is_not_given(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    left = MemoryLeft(9 * BLOCK, "this machine has left")
    monkeypatch.setattr(room, "memory_left", lambda: left)
    monkeypatch.setattr(room, "reserved_bytes", lambda: 0)
    why = (
        r"no room for the model of engine e1: it takes 9.766 KiB, and can have at most the 9000 bytes \(8.789 KiB\) "
        r"that this machine has left: end what has taken it since the node was started, or start the node with less"
    )
    with pytest.raises(Refused, match=why) as refused:
        rig.come("a")
    assert not refused.value.for_good
    assert rig.status["free_bytes"] == 10 * BLOCK
    monkeypatch.setattr(room, "reserved_bytes", lambda: 10 * BLOCK)
    assert rig.come("a")[1]["slots"] == 10, "huge pages that were set aside are not part of what is left"


def test_a_model_that_no_engine_uses_gives_its_memory_to_the_next_one(rig: Rig) -> None:
    first, _ = rig.come("a")
    second, _ = rig.come("a")
    rig.go(first)
    with pytest.raises(Refused, match="end the engines of a"):
        rig.come("b")
    rig.spaces.ending(second)
    with pytest.raises(Refused, match="end the engines of a"):
        rig.come("b")
    rig.spaces.over(second)
    assert rig.models == ["a"], "as long as nobody wants it, it stays warm"
    assert rig.come_at_last("b")[1]["slots"] == 10
    assert rig.models == ["b"]
    assert any("are given back: no engine uses it" in line for line in rig.lines)


def test_a_crumb_that_is_left_is_no_room_for_the_whole_life_of_another_model(rig: Rig) -> None:
    owner, _ = rig.come("a", parts=[9600])
    with pytest.raises(
        Refused, match="400 bytes are left of the node's memory, and one block takes 100 bytes"
    ) as crumb:
        rig.come("b", parts=[100])
    assert not crumb.value.for_good
    rig.go(owner)
    assert rig.come_at_last("b", parts=[100])[1]["slots"] == 100


def test_an_engine_that_comes_again_finds_its_model_as_it_was(rig: Rig) -> None:
    owner, _ = rig.come("a")
    (space,) = rig.spaces._spaces.values()
    rig.go(owner)
    rig.come("a")
    assert list(rig.spaces._spaces.values()) == [space]


def test_memory_is_not_given_twice_while_it_is_being_given_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    held, close = threading.Event(), NodeArena.close
    monkeypatch.setattr(NodeArena, "close", lambda self: (held.wait(SOON_S), close(self)))
    owner, _ = rig.come("a")
    rig.go(owner)
    for _ in range(3):
        with pytest.raises(Refused, match="memory of a model that no engine uses is being given back for it"):
            rig.come("b")
    assert rig.status["free_bytes"] == 0
    held.set()
    assert rig.come_at_last("b")[1]["slots"] == 10
    assert rig.status["free_bytes"] == 0


def test_memory_that_cannot_be_given_back_is_said_and_stays_taken(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    close = NodeArena.close
    owner, _ = rig.come("a")
    arenas = [arena for space in rig.spaces._spaces.values() for arena in space.arenas.values()]

    def fail(_: NodeArena) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(NodeArena, "close", fail)
    rig.go(owner)
    with pytest.raises(Refused):
        rig.come("b")
    wait_until(lambda: rig.status["free_bytes"] == 0 and any("cannot be given back" in line for line in rig.lines))
    with pytest.raises(Refused, match="0 bytes are left"):
        rig.come("b")
    for arena in arenas:
        close(arena)


def test_a_block_that_would_never_fit_takes_nothing_from_anybody(rig: Rig) -> None:
    owner, _ = rig.come("a")
    rig.go(owner)
    with pytest.raises(Refused, match=r"one block takes 10\.74 KiB, and it may have 9\.766 KiB of") as refused:
        rig.come("b", parts=[11 * BLOCK])
    assert refused.value.for_good
    assert rig.models == ["a"]


# ---------------------------------------------------------------------- private namespaces


def test_memory_of_a_private_namespace_is_given_back_with_its_engine(rig: Rig) -> None:
    owner, _ = rig.come("a", private="1234")
    rig.spaces.ending(owner)
    assert rig.models == ["a"], "its last copies may still run"
    rig.spaces.over(owner)
    assert rig.models == []
    wait_until(lambda: rig.status["free_bytes"] == 10 * BLOCK)
    assert rig.come("a")[1]["slots"] == 10


def test_an_engine_that_leaves_for_a_private_namespace_gets_the_memory_that_it_had(rig: Rig) -> None:
    owner, _ = rig.come("a")
    rig.go(owner)
    assert rig.come_at_last("a", private="1234")[1]["slots"] == 10


# ---------------------------------------------------------------------- with shares


def shared_rig(*shares: str) -> Rig:
    return Rig(10, *shares)


def test_memory_of_a_share_waits_for_its_model() -> None:
    rig = shared_rig("a=40%")
    assert rig.come("b")[1]["slots"] == 6
    with pytest.raises(Refused, match="0 bytes are left of the memory for models without a share of their own"):
        rig.come("c")
    assert rig.come("org/a")[1] == {"slots": 4, "unlike": 'model is "org/a", not "b"', "room": ""}
    assert [(share["model"], share["bytes"], share["free_bytes"]) for share in rig.status["shares"]] == [
        ("a", 4000, 0),
        ("", 6000, 0),
    ]
    rig.spaces.close()


def test_a_model_without_a_share_is_refused_where_all_memory_is_in_shares() -> None:
    rig = shared_rig("a=100%")
    with pytest.raises(Refused, match=r"it may have 0 bytes of the memory for models without a share") as refused:
        rig.come("b")
    assert refused.value.for_good
    rig.spaces.close()


def test_a_share_without_a_model_bounds_each_of_the_others() -> None:
    rig = shared_rig("30%")
    assert [rig.come(model)[1]["slots"] for model in "abc"] == [3, 3, 3]
    assert rig.come("d")[1]["room"] == "1000 bytes of 2.93 KiB: other models have the rest"
    rig.spaces.close()


def test_who_has_been_idle_for_longest_gives_its_memory_back_first_and_no_more_than_is_needed() -> None:
    rig = shared_rig("30%")
    owners = [rig.come(model)[0] for model in "abc"]
    for number in (1, 0, 2):
        rig.go(owners[number])
    rig.come_at_last("d")
    assert rig.models == ["a", "c", "d"]
    rig.spaces.close()


def test_a_model_with_a_share_takes_nothing_from_those_without() -> None:
    rig = shared_rig("a=50%")
    owner, _ = rig.come("b")
    rig.come("a")
    rig.go(owner)
    with pytest.raises(Refused, match="0 bytes are left of the share of a"):
        rig.come("a", dtype="another")
    assert "b" in rig.models
    rig.spaces.close()
