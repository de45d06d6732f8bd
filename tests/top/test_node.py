"""`kvtide top` on a node: what it really exports, beside servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from kvtide.core.index import calls
from kvtide.core.index.calls import Offer
from kvtide.node.codec import call_frame
from kvtide.node.exported import exported
from kvtide.node.hello import Hello, Role
from kvtide.node.owners import Owner
from kvtide.node.spaces import Spaces
from kvtide.top.alarms import alarms
from kvtide.top.history import History, Server
from kvtide.top.reading import parse
from kvtide.top.state import state
from tests.command_line import run
from tests.node.support import wait_until
from tests.top.fake import fake_server
from tests.top.test_view import line_of, picture, watched

BLOCK, TOKENS = 1000, 16


class Machine:
    """A node's namespaces, and what Prometheus would read of them."""

    def __init__(self) -> None:
        self.spaces = Spaces(20 * BLOCK, lambda _: None)
        self.epoch = "first"
        self.engines: dict[str, Owner] = {}
        self.connections = 3

    def come(self, model: str, slots: int, pinned: int | None = None) -> None:
        owner = self.engines[model] = Owner(len(self.engines) + 1, model, "")
        parts = [20 * BLOCK // slots]
        groups = [{"kind": "FullAttention", "block_tokens": TOKENS}]
        hello = Hello(Role.SCHEDULER, engine=model, namespace={"model": model, "parts": parts, "groups": groups})
        self.spaces.attach(owner, hello)
        (arena,) = self.spaces.join(owner, hello)
        wait_until(lambda: arena.ready_slots == slots)
        self.say(model, calls.Ready(slots if pinned is None else pinned))

    @property
    def index(self) -> Any:
        return list(self.spaces._spaces.values())[-1].index

    def say(self, model: str, call: calls.Call) -> None:
        list(self.spaces.handle(self.engines[model], call_frame(call)))

    def store(self, model: str, name: str, blocks: int) -> None:
        keys = [f"{name}{number}".encode() for number in range(blocks)]
        offer = Offer(0, keys, None, TOKENS, [], needs_prefix=False, touch=False)
        self.say(model, calls.Reserve(1, [offer], blocks))
        owner = self.engines[model].number
        self.say(model, calls.Settle(list(self.index._owners[owner].runs), kept=True))

    def look_up(self, model: str, name: str, blocks: int) -> None:
        keys = [f"{name}{number}".encode() for number in range(blocks)]
        self.say(model, calls.LookUp(2, [keys], 0, blocks * TOKENS + 1, [0]))

    def text(self) -> str:
        status = {
            "epoch": self.epoch,
            "kvtide": "1",
            "protocol": 1,
            "policy": "lru",
            "up_s": 1.0,
            "refused": 0,
            "memory_bytes": 20 * BLOCK,
            "connections": self.connections,
            "connections_max": 9,
            "closed": 0,
            "engines": [{"state": "open"} for _ in self.engines],
            **self.spaces.status(),
        }

        class Status(Collector):
            def collect(self) -> Any:
                return exported(status)

        registry = CollectorRegistry()
        registry.register(Status())
        return generate_latest(registry).decode()


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    machine.come("org/small-model", 10)
    machine.store("org/small-model", "a", 5)
    machine.look_up("org/small-model", "a", 7)
    yield machine
    machine.spaces.close()


def seen(machine: Machine, *more: str) -> Server:
    history = History("http://127.0.0.1:9400/metrics")
    for second, text in enumerate([machine.text(), *more]):
        history.add(parse(text), float(second))
    return history.server()


def test_hits_fill_and_reasons_of_a_node_are_shown_as_those_of_a_server(machine: Machine) -> None:
    server = seen(machine)
    assert (server.state, server.why, server.models) == ("up", "", ("org/small-model",))
    assert server.since_start is not None
    assert server.now is not None
    assert server.since_start.tokens.share("host") == pytest.approx(5 * TOKENS / (7 * TOKENS + 1))
    assert server.since_start.tokens.share("device") is server.since_start.tokens.share("tiers") is None
    assert server.since_start.not_loaded == {"not_cached": 2 * TOKENS}
    assert server.since_start.blocks["stored"] == 5
    assert server.since_start.moved_bytes["store"] == 5 * 2 * BLOCK
    assert (server.now.pool.slots, server.now.pool.fill, server.now.pool.pinned) == (10, 0.5, 5)
    assert server.now.node is not None
    assert server.now.node.engines == {"ending": 0, "open": 1}
    (space,) = server.now.node.namespaces.values()
    assert (space.model, space.fill, space.engines) == ("org/small-model", 0.5, 1)


def test_slots_that_an_engine_still_pins_are_not_full() -> None:
    machine = Machine()
    machine.come("org/small-model", 10, pinned=4)
    machine.store("org/small-model", "a", 2)
    now = seen(machine).now
    machine.spaces.close()
    assert now is not None
    assert now.pool.slots == 10
    assert now.pool.fill == pytest.approx(0.2)


def test_the_memory_of_a_node_is_that_of_its_models_whatever_size_their_blocks_have() -> None:
    lines = ["# TYPE kvtide_node_build_info gauge", 'kvtide_node_build_info{epoch="e"} 1']
    gauges = {"namespace_bytes": (4000, 8000), "slots": (4, 800), "slots_ready": (4, 400)}
    for name, values in gauges.items():
        lines.append(f"# TYPE kvtide_node_{name} gauge")
        lines += [f'kvtide_node_{name}{{namespace="{space}",model="m"}} {values[space]}' for space in (0, 1)]
    lines.append("# TYPE kvtide_node_stored_blocks counter")
    lines += [f'kvtide_node_stored_blocks_total{{namespace="{space}",model="m"}} {7}' for space in (0, 1)]
    assert state(parse("\n".join([*lines, ""]))).pool.bytes == 4000 + 8000 / 2


def test_a_node_is_drawn_in_80_columns_beside_servers(machine: Machine) -> None:
    lines = picture(seen(machine), watched())
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "127.0.0.1:9400  up, a node: 1 engine, 19.53 KiB, all given to models" in text
    assert line_of(lines, "org/small-mod").split()[2:] == ["50.0%", "1", "engine,", "10", "slots"]
    assert "not loaded (tokens, since start): not_cached 32" in text
    assert not [line for line in picture(seen(machine)) if line.startswith(("device", "tiers"))], "it does not know"


def test_a_namespace_that_goes_is_no_restart_and_another_life_is(machine: Machine) -> None:
    before = machine.text()
    owner = machine.engines.pop("org/small-model")
    machine.spaces.ending(owner)
    machine.spaces.over(owner)
    machine.spaces._give_back(next(iter(machine.spaces._spaces.values())))
    machine.engines["gone"] = owner
    gone = machine.text()
    history = History("http://node/metrics")
    for second, text in enumerate((before, gone)):
        history.add(parse(text), float(second))
    assert history.server().restarts == 0
    machine.epoch = "second"
    history.add(parse(machine.text()), 3.0)
    assert history.server().restarts == 1
    history.add(parse(before), 4.0)
    server = history.server()
    assert server.restarts == 2
    assert server.points[-1] is not None
    assert server.points[-1].blocks["stored"] == 5


def test_what_somebody_should_look_at_is_an_alarm(machine: Machine) -> None:
    assert alarms(seen(machine)) == []
    machine.spaces.ending(machine.engines["org/small-model"])
    machine.connections = 9
    assert alarms(seen(machine)) == [
        "there is no room for another connection: raise LimitNOFILE of the node",
        "5 slots in quarantine: processes of ended engines may still use them",
    ]


def test_a_tier_that_is_not_open_yet_is_not_said_to_have_failed(machine: Machine) -> None:
    name = next(iter(machine.spaces._spaces))
    up = f'# TYPE kvtide_node_tier_up gauge\nkvtide_node_tier_up{{namespace="{name}",tier="disk"}} 0\n'
    assert alarms(seen(machine, machine.text() + up)) == [
        "tier disk is not in use: it is still being opened, or the node's log says why"
    ]


def test_advice_rests_on_its_look_ups(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        machine.look_up("org/small-model", "a", 7)
    with fake_server(machine.text()) as fake:
        _, out, _ = run(capsys, "advise", "--since-start", fake.url)
    assert out.startswith(f"21 look-ups of {21 * (7 * TOKENS + 1):,} tokens since the node was started.\n")
    assert "No model fills more than 50.0% of its memory" in out


def test_programs_can_read_it(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(machine.text()) as fake:
        code, out, _ = run(capsys, "top", "--once", "--json", fake.url)
    assert code == 0
    (server,) = json.loads(out)["servers"]
    (space,) = server["now"]["node"]["namespaces"].values()
    assert space == {"model": "org/small-model", "slots": 10, "cached": 5, "engines": 1, "fill": 0.5}
    assert server["since_start"]["hit_ratio"]["host"] == pytest.approx(80 / 113)
