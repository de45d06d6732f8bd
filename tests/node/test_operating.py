"""Looking at a node that works, and clearing a namespace: a real process, with real calls of an engine."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvtide.core import NotLoaded, NotStored
from kvtide.core.index import calls
from kvtide.core.index.calls import Call, Found, Offer, Reserved
from kvtide.node.ask import clear, status_of
from kvtide.node.client import Client
from kvtide.node.codec import call_frame, read_reply
from kvtide.node.errors import NodeError
from kvtide.node.shown import WIDTH, described
from tests.command_line import run
from tests.node.support import SOON_S, wait_to_read, wait_until
from tests.node.test_node import NodeProcess, attached, leave, node, port

__all__ = ["port"]  # a fixture
DOCS = Path(__file__).parents[2] / "docs" / "users" / "node.md"
TOKENS = 16


def keys(name: str, blocks: int) -> list[bytes]:
    return [f"{name}{number:07}".encode() for number in range(blocks)]


@dataclass
class Engine:
    """An engine that says what it is told to."""

    scheduler: Client
    workers: list[Client]

    def say(self, call: Call) -> None:
        frame = call_frame(call)
        self.scheduler.send(frame.kind, frame.body)

    def ask(self, call: Call) -> Any:
        self.say(call)
        frames = self.scheduler.poll()
        while not frames:
            wait_to_read(self.scheduler)
            frames = self.scheduler.poll()
        (frame,) = frames
        return read_reply(frame)

    def store(self, name: str, blocks: int) -> None:
        offer = Offer(0, keys(name, blocks), None, TOKENS, [], needs_prefix=False, touch=False)
        reserved = self.ask(calls.Reserve(1, [offer], blocks))
        assert isinstance(reserved, Reserved)
        self.say(calls.Settle([run.id for taken in reserved.taken for run in taken.runs], kept=True))

    def look_up(self, name: str, blocks: int) -> Found:
        found = self.ask(calls.LookUp(2, [keys(name, blocks)], 0, blocks * TOKENS + 1, [0]))
        assert isinstance(found, Found)
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[NodeProcess]:
    options = ("--metrics", str(port), "--share", "other=25%", "--policy", "lru")
    with node(tmp_path_factory.mktemp("operated") / "node.sock", *options) as process:
        yield process
        assert process.end(signal.SIGTERM) == 0


@pytest.fixture
def engine(running: NodeProcess) -> Iterator[Engine]:
    scheduler, workers = attached(running.path, "an-engine")
    wait_until(lambda: namespace(running)["ready_slots"] == namespace(running)["slots"])
    found = Engine(scheduler, workers)
    found.say(calls.Ready(namespace(running)["slots"]))
    yield found
    leave(scheduler, workers)
    wait_until(lambda: status_of(running.path)["engines"] == [])


def namespace(running: NodeProcess) -> dict[str, Any]:
    (found,) = status_of(running.path)["namespaces"]
    assert isinstance(found, dict)
    return found


def test_a_status_says_what_became_of_look_ups_and_who_holds_what(running: NodeProcess, engine: Engine) -> None:
    before = namespace(running)
    engine.store("status", 3)
    assert engine.look_up("status", 4).tokens == 3 * TOKENS
    space = namespace(running)
    assert space["lookups"] - before["lookups"] == 1
    assert space["found_tokens"] - before["found_tokens"] == 3 * TOKENS
    assert space["asked_tokens"] - before["asked_tokens"] == 4 * TOKENS + 1
    assert space["stored_blocks"] - before["stored_blocks"] == 3
    assert space["not_loaded"]["not_cached"] - before["not_loaded"]["not_cached"] == TOKENS
    assert (space["leased"], space["model"], space["engines"]) == (3, "tiny", 1)
    status = status_of(running.path)
    assert (status["engines"][0]["leased"], status["policy"]) == (3, "lru")
    text = "\n".join(described(status))
    assert re.search(r"memory +1 MiB, all but [0-9.]+ KiB given to models; [0-9.]+% of it holds blocks", text)
    assert re.search(r"share +other: 256 KiB, none given to it", text)
    assert re.search(r"hits +[0-9.]+% of \d+ tokens, in \d+ look-ups?", text)
    assert re.search(r"in use +3 leased, 0 being written", text)
    assert re.search(r"not found +not_cached \d+ \(tokens\)", text)
    assert re.search(r"engine +an-engine \(open\): 3 slots leased, 0 being written", text)
    assert "quarantine" not in text


def test_what_an_engine_that_has_gone_may_still_read_is_shown_in_quarantine(running: NodeProcess) -> None:
    scheduler, workers = attached(running.path, "leaving")
    engine = Engine(scheduler, workers)
    engine.say(calls.Ready(namespace(running)["slots"]))
    engine.store("quarantine", 2)
    engine.look_up("quarantine", 2)
    scheduler.close()
    wait_until(lambda: namespace(running)["quarantined"] == 2)
    text = "\n".join(described(status_of(running.path)))
    assert re.search(r"quarantine +2 slots that processes of ended engines may still use", text)
    assert re.search(r"engine +leaving \(ending\)", text)
    line = "engine leaving has gone: 2 slots in quarantine until its processes have ended"
    wait_until(lambda: f"kvtide: {line}" in running.lines)
    leave(scheduler, workers)
    wait_until(lambda: status_of(running.path)["engines"] == [])
    text = "\n".join(described(status_of(running.path)))
    assert "none: kept until another model needs the memory" in text


def test_a_status_fits_a_screen_of_80_columns(running: NodeProcess, engine: Engine) -> None:
    engine.look_up("screen", 4)
    status = status_of(running.path)
    status["epoch"], status["socket"] = "0123456789abcdef", "/run/user/1000/kvtide/of-this-machine/node.sock"
    status["namespaces"][0]["model"] = "an-organisation-with-a-long-name/A-Model-With-A-Long-Name-70B-Instruct-FP8"
    status["namespaces"][0].update(slots=10**7, cached=10**7 - 1, leased=10**6, quarantined=10**6, private=True)
    status["namespaces"][0]["not_loaded"] = {why.value: 10**9 for why in NotLoaded}
    status["engines"][0]["engine"] = "vllm-of-an-organisation-0123456789abcdef-0123456789abcdef"
    assert max(map(len, described(status))) <= WIDTH
    assert all(line == line.rstrip() for line in described(status))


def test_memory_that_models_have_is_not_said_to_be_full(running: NodeProcess, engine: Engine) -> None:
    clear(running.path, namespace(running)["name"])
    engine.store("night", namespace(running)["slots"] // 10)
    status = {**status_of(running.path), "free_bytes": 0, "memory_bytes": namespace(running)["bytes"]}
    text = "\n".join(described(status))
    full = namespace(running)["cached"] / namespace(running)["slots"]
    assert re.search(rf"memory +[0-9.]+ KiB, all given to models; {full:.1%} of it holds blocks", text)
    assert "free" not in text


def test_who_is_far_from_the_memory_is_shown(running: NodeProcess, engine: Engine) -> None:
    status = status_of(running.path)
    assert not any(process["far"] for engine in status["engines"] for process in engine["processes"])
    status["namespaces"][0]["arenas"][0]["where"] = "NUMA node 0"
    workers = [process for process in status["engines"][0]["processes"] if process["role"] == "worker"]
    assert len(workers) == len(engine.workers)
    workers[1]["far"] = "memory of NUMA node 0 and a GPU next to NUMA node 1"
    text = " ".join("\n".join(described(status)).split())
    assert ", NUMA node 0 part 1" in text
    assert "connected (it has memory of NUMA node 0 and a GPU next to NUMA node 1)" in text


# ---------------------------------------------------------------------- clearing


def test_an_operator_clears_a_namespace_and_engines_go_on(
    running: NodeProcess, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    clear(running.path, namespace(running)["name"])
    engine.store("clear", 3)
    lease = engine.look_up("clear", 3)
    assert lease.tokens == 3 * TOKENS
    code, out, err = run(capsys, "node", "clear", "--socket", running.path, "--dry-run", "--json", "tiny")
    name = namespace(running)["name"]
    assert (code, err, json.loads(out)) == (0, "", {"namespace": name, "blocks": 3})
    assert engine.look_up("clear", 3).tokens == 3 * TOKENS, "nothing was cleared"
    code, out, err = run(capsys, "node", "clear", "--socket", running.path, "--yes", name[:6])
    assert (code, out, err) == (0, "3 blocks forgotten\n", "")
    assert engine.look_up("clear", 3).tokens == 0
    assert namespace(running)["leased"] == 6
    wait_until(lambda: f"kvtide: namespace {name} was cleared: 3 blocks forgotten" in running.lines)
    engine.store("clear", 3)
    assert engine.look_up("clear", 3).tokens == 3 * TOKENS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tiny", "not a terminal: add --yes to forget "),
        ("no-such", "NAMESPACE='no-such': expected one of those that the node has: "),
    ],
)
def test_nothing_is_cleared_without_being_sure(
    running: NodeProcess, engine: Engine, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    clears = namespace(running)["clears"]
    code, out, err = run(capsys, "node", "clear", "--socket", running.path, arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtide: error: {message}")
    assert namespace(running)["clears"] == clears


@pytest.mark.parametrize("agrees", [True, False])
def test_somebody_at_a_terminal_is_asked(
    running: NodeProcess,
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    agrees: bool,
) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return agrees

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", confirm)
    clears = namespace(running)["clears"]
    code, _, err = run(capsys, "node", "clear", "--socket", running.path, "tiny")
    assert (code, err) == ((0, "") if agrees else (1, "kvtide: nothing was cleared\n"))
    assert re.fullmatch(r"Forget [\d,]+ blocks of namespace \w+ \(tiny\)\?", asked[0])
    assert namespace(running)["clears"] == clears + agrees


def test_a_namespace_that_is_not_there_is_not_cleared(running: NodeProcess) -> None:
    with pytest.raises(NodeError, match=r"says: this node has no namespace 'no-such\\n'"):
        clear(running.path, "no-such\n")


# ---------------------------------------------------------------------- Prometheus


def scraped(port: int) -> list[Metric]:
    """Return what Prometheus reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON_S) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.documentation for family in families)
    return families


def samples(port: int) -> dict[tuple[str, str], float]:
    """Return values by name and reason, all namespaces together."""
    return {
        (sample.name, sample.labels.get("reason", sample.labels.get("state", ""))): sample.value
        for family in scraped(port)
        for sample in family.samples
    }


def test_a_port_that_the_system_has_chosen_is_said(tmp_path: Path) -> None:
    with node(tmp_path / "node.sock", "--metrics", "0") as process:
        wait_until(lambda: len(process.lines) > 1)
        found = re.fullmatch(r"kvtide: metrics are at http://127\.0\.0\.1:(\d+)/metrics", process.lines[1])
        assert found is not None
        port = int(found[1])
        wait_until(lambda: samples(port).get(("kvtide_node_memory_bytes", "")) == 1 << 20)


def test_prometheus_reads_what_a_status_says_from_0_on(running: NodeProcess, engine: Engine, port: int) -> None:
    engine.look_up("prometheus", 4)
    status = status_of(running.path)
    space = namespace(running)
    wait_until(lambda: samples(port).get(("kvtide_node_lookups_total", "")) == space["lookups"])
    found = samples(port)
    for name in ("asked_tokens", "found_tokens", "stored_blocks", "evicted_blocks", "clears", "calls_unknown"):
        assert found[f"kvtide_node_{name}_total", ""] == space[name]
    for why in NotLoaded:
        assert found["kvtide_node_not_loaded_total", why.value] == space["not_loaded"][why.value]
    for reason in NotStored:
        assert found["kvtide_node_not_stored_total", reason.value] == space["not_stored"][reason.value]
    assert found["kvtide_node_slots", ""] == found["kvtide_node_slots_ready", ""] == space["slots"]
    assert found["kvtide_node_memory_bytes", ""] == status["memory_bytes"]
    assert found["kvtide_node_engines", "open"] == 1


def test_every_metric_is_in_the_documents_and_no_other(running: NodeProcess, engine: Engine, port: int) -> None:
    wait_until(lambda: ("kvtide_node_slots", "") in samples(port))
    documented = set(re.findall(r"`kvtide_node_(\w+)", DOCS.read_text()))
    documented |= set(re.findall(r"`…_(\w+)", DOCS.read_text()))
    suffixes = {"counter": "_total", "info": "_info"}
    exported = {family.name + suffixes.get(family.type, "") for family in scraped(port)}
    assert {name.removeprefix("kvtide_node_") for name in exported} == documented
