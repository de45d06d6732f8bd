"""What both sides say first: understood, refused by name, or closed. Nothing else can come of it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtide import __version__
from kvtide.node import hello as hello_module
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import Frame, Kind
from kvtide.node.hello import PROTOCOL, ArenaDescription, Hello, Role, Welcome, read_hello, read_welcome, refusal

WORKER = Hello(
    Role.WORKER,
    engine="e",
    epoch="abc",
    owner=17,
    rank=3,
    part=1,
    numa_node=0,
    worker="w",
)
SCHEDULER = Hello(Role.SCHEDULER, engine="é", namespace={"parts": [4096], "model": "m"})
WELCOME = Welcome("abc", 17, 18, (ArenaDescription(0, 4, 1000, 4096),), {"slots": 4})


def changed(frame: Frame, **fields: object) -> Frame:
    return frame._replace(body=json.dumps({**json.loads(frame.body), **fields}).encode())


@pytest.mark.parametrize("hello", [WORKER, SCHEDULER, Hello(Role.OPERATOR)])
def test_a_hello_is_read_as_it_was_said(hello: Hello) -> None:
    assert read_hello(hello.frame()) == hello


def test_a_welcome_is_read_as_it_was_said() -> None:
    assert read_welcome(WELCOME.frame((5,))) == WELCOME


def test_a_refusal_is_raised_where_it_arrives() -> None:
    with pytest.raises(Refused, match="too old") as refused:
        read_welcome(refusal(Refused("too old", for_good=True)))
    assert refused.value.for_good


def test_an_older_engine_is_told_to_upgrade_by_a_newer_node(monkeypatch: pytest.MonkeyPatch) -> None:
    said = changed(SCHEDULER.frame(), kvtide="0.8", protocol=1)
    monkeypatch.setattr(hello_module, "PROTOCOL", 3)
    with pytest.raises(Refused) as refused:
        read_hello(said)
    why = f"the engine speaks protocol 1 (kvtide 0.8), this node speaks 3 (kvtide {__version__})"
    assert refused.value.why == f"{why}: upgrade kvtide of the engine"
    assert refused.value.for_good


@pytest.mark.parametrize("answer", [WELCOME.frame((5,)), refusal(Refused("whatever", for_good=False))])
def test_an_engine_says_by_itself_that_the_node_is_of_another_version(answer: Frame) -> None:
    newer = PROTOCOL + 2
    why = rf"this node speaks protocol {newer} \(kvtide 0.9\), the engine speaks {PROTOCOL} .*of the engine"
    with pytest.raises(Refused, match=why):
        read_welcome(changed(answer, protocol=newer, kvtide="0.9"))
    with pytest.raises(Refused, match="upgrade kvtide of this node"):
        read_welcome(changed(answer, protocol=0, kvtide="0.1"))


def test_what_another_version_says_beside_its_version_is_not_looked_at() -> None:
    with pytest.raises(Refused, match="protocol 99"):
        read_hello(Frame(Kind.HELLO, b'{"protocol": 99, "kvtide": "0.9", "role": {"new": "things"}}'))


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": None},
        {"protocol": True},
        {"protocol": "1"},
        {"kvtide": 1},
        {"role": "king"},
        {"role": None},
        {"engine": 5},
        {"engine": "x" * 300},
        {"engine": "two\nlines"},
        {"namespace": []},
        {"worker": 7},
        {"owner": -1},
        {"owner": 1.5},
        {"rank": True},
        {"part": "0"},
        {"numa_node": "near"},
        {"numa_node": 1 << 40},
        {"rank": 1 << 80},
    ],
)
def test_a_hello_that_makes_no_sense_is_no_hello(fields: dict[str, object]) -> None:
    with pytest.raises(BadFrame, match="a hello"):
        read_hello(changed(WORKER.frame(), **fields))


@pytest.mark.parametrize("fields", [{"arenas": None}, {"arenas": []}, {"arenas": [1]}, {"arenas": [{}]}, {"more": 1}])
def test_a_welcome_that_makes_no_sense_is_no_welcome(fields: dict[str, object]) -> None:
    with pytest.raises(BadFrame):
        read_welcome(changed(WELCOME.frame((5,)), **fields))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
FIELDS = ["protocol", "kvtide", "role", "engine", "namespace", "epoch", "owner", "rank", "part", "numa_node"]


@settings(max_examples=50)
@given(body=st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()), kind=st.sampled_from(Kind))
def test_whatever_is_said_is_understood_or_refused(body: bytes, kind: Kind) -> None:
    for read in (read_hello, read_welcome):
        with pytest.raises((BadFrame, Refused)):
            read(Frame(kind, body))


@settings(max_examples=50)
@given(fields=st.dictionaries(st.sampled_from([*FIELDS, "arenas", "more", "why", "for_good"]), JSON, max_size=3))
def test_whatever_is_said_in_the_right_places_is_understood_or_refused(fields: dict[str, object]) -> None:
    for read, frame in ((read_hello, WORKER.frame()), (read_welcome, WELCOME.frame((5,)))):
        with contextlib.suppress(BadFrame, Refused):
            read(changed(frame, **fields))
    with pytest.raises((BadFrame, Refused)) as refused:
        read_welcome(changed(refusal(Refused("no", for_good=False)), **fields))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("depth", "is_good"), [(15, True), (17, False), (900, False)])
def test_what_can_be_read_can_be_written_again(depth: int, is_good: bool) -> None:
    inner = b'{"a": ' * (depth - 1) + b"[]" + b"}" * (depth - 1)
    said = SCHEDULER.frame().body.replace(b'"m"', inner)
    if is_good:
        assert read_hello(Frame(Kind.HELLO, said)).namespace["model"]
    else:
        with pytest.raises(BadFrame, match="deeper than 16"):
            read_hello(Frame(Kind.HELLO, said))


def test_depth_is_no_way_to_hurt() -> None:
    with pytest.raises(BadFrame, match="no JSON"):
        read_hello(Frame(Kind.HELLO, b"[" * 60_000))
