"""The event stream: complete, or it says that it is not."""

from __future__ import annotations

import pytest

from kvtide.core import Cleared, EventsLost, Metrics, Removed, Stored
from kvtide.core import events as events_module
from kvtide.core.events import CacheEvent, EventStream
from tests.support import World, keys_of, text


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "EVENTS_MAX", 4)


def stored(number: int) -> CacheEvent:
    return Stored(0, (bytes([number]),), None)


def test_events_come_in_order_and_only_once() -> None:
    stream = EventStream(True, Metrics())
    stream.add(stored(1))
    stream.add(Cleared())
    assert stream.take() == [stored(1), Cleared()]
    assert stream.take() == []


def test_a_stream_that_is_off_keeps_nothing() -> None:
    stream = EventStream(False, Metrics())
    stream.add(stored(1))
    assert stream.take() == []


@pytest.mark.usefixtures("small")
def test_a_listener_that_falls_behind_is_told_so_and_gets_what_comes_after() -> None:
    metrics = Metrics()
    stream = EventStream(True, metrics)
    for number in range(6):
        stream.add(stored(number))
    assert stream.take() == [EventsLost(), stored(4), stored(5)]
    assert metrics.events_lost == 4


@pytest.mark.usefixtures("small")
def test_the_stream_is_bounded_however_long_nobody_listens() -> None:
    metrics = Metrics()
    stream = EventStream(True, metrics)
    for number in range(200):
        stream.add(stored(number))
    left = stream.take()
    assert len(left) <= 4
    assert left[0] == EventsLost()
    assert left.count(EventsLost()) == 1
    assert metrics.events_lost + len(left) - 1 == 200, "every event is either lost or there"


@pytest.mark.parametrize("policy", ["prefix", "lru"])
def test_a_listener_that_follows_the_stream_knows_what_is_cached(policy: str) -> None:
    world = World(host_blocks=6, policy=policy, events=True)
    known: set[bytes] = set()
    texts = [text(name, 12 + 4 * index) for index, name in enumerate("abcab")]
    for index, tokens in enumerate(texts):
        world.serve(f"r{index}", tokens)
        for event in world.manager.take_events():
            if isinstance(event, Stored):
                assert known.isdisjoint(event.keys)
                known |= set(event.keys)
            elif isinstance(event, Removed):
                assert known >= set(event.keys)
                known -= set(event.keys)
        cached = {key for tokens in texts for key in keys_of(tokens, 4) if world.manager.is_cached(0, key)}
        assert known == cached


def test_a_stored_event_names_what_its_first_key_continues() -> None:
    world = World(events=True)
    request = world.begin("r", text("a", 16))
    keys = request.keys[0]
    world.compute(request, 8)
    world.step()
    world.compute(request, 16)
    world.step()
    assert world.manager.take_events() == [Stored(0, tuple(keys[:2]), None), Stored(0, tuple(keys[2:]), keys[1])]


def test_a_reset_is_one_event() -> None:
    world = World(events=True)
    world.serve("r", text("a", 16))
    world.manager.take_events()
    world.reset()
    assert world.manager.take_events() == [Cleared()]


def test_without_the_option_there_are_no_events() -> None:
    world = World()
    world.serve("r", text("a", 16))
    assert world.manager.take_events() == []
