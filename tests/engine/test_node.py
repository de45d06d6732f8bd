"""Embedded engines whose host blocks are at a real node: shared, found after a restart, and never in the way."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.core import NotLoaded
from kvtide.engine import Engine
from kvtide.errors import ConfigError
from kvtide.node.codec import Kind
from kvtide.node.connection import Connection
from kvtide.node.frames import Frame
from tests.left_behind import Before
from tests.node.real_node import BLOCK_TOKENS, MODEL, Answer, EngineProcess, RealNode, be_patient, config_of, serve
from tests.node.support import wait_until

patient = pytest.fixture(autouse=True)(be_patient)


def prompt(seed: int, length: int = 160) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(MODEL.vocab) for _ in range(length)]


def alone(tokens: list[int], new: int = 4) -> list[int]:
    """What an engine says that has nobody."""
    with Engine(config_of()) as engine:
        return serve(engine, tokens, new).tokens


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    with RealNode(tmp_path_factory.mktemp("node") / "node.sock") as node:
        yield node


@pytest.fixture(scope="module")
def node_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """One more: the first namespace of a node may take all of its memory."""
    with RealNode(tmp_path_factory.mktemp("node") / "node.sock") as node:
        yield node


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "node.sock") as node:
        yield node


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"host": "1GiB"}, "host='1GiB': expected no such option beside node: the memory is the node's"),
        ({"host_per_rank": 5}, "host_per_rank=5: expected no such option beside node: the memory is the node's"),
        ({"tiers": [{"type": "disk"}]}, "no such option beside node: what is below host memory is the node's"),
        ({"policy": "lru"}, "policy='lru': expected no such option beside node: which block leaves"),
        ({"events": True}, "events=True: expected no such option beside node"),
        ({"min_fetch_tokens": 5}, "min_fetch_tokens=5: expected no such option beside node"),
        ({"node": 5}, "node=5: expected the path of the socket of a node"),
        ({"node": "/dev/null/node.sock"}, "what it is said to be in is no folder"),
        ({"modes": "lazy"}, "did you mean .mode"),
    ],
)
def test_what_means_nothing_beside_a_node_is_refused_by_name(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Engine(config_of(), {"node": str(tmp_path / "node.sock"), **more})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_what_one_engine_computed_another_one_loads_with_the_same_output(
    node: RealNode, node_of_two_ranks: RealNode, ranks: int, mode: str
) -> None:
    node = node if ranks == 1 else node_of_two_ranks
    tokens = prompt(10 * ranks + len(mode))
    options = {"node": str(node.path), "mode": mode}
    before = Before()
    with Engine(config_of(ranks), options) as first, Engine(config_of(ranks), options) as second:
        said = serve(first, tokens, 4)
        for seed in range(3):  # in lazy mode blocks are stored when they are about to be evicted
            serve(first, prompt(1000 + seed), 4)
        found = serve(second, tokens, 4)
        assert said.tokens == found.tokens == alone(tokens)
        assert (said.loaded_tokens, found.loaded_tokens) == (0, len(tokens) - 8)
    before.check()


def test_i15_engines_that_hold_bytes_in_another_way_share_nothing(tmp_path: Path) -> None:
    tokens, path = prompt(77), tmp_path / "node.sock"
    with (
        RealNode(path, "--share", "50%") as node,
        Engine(config_of(1), {"node": str(path)}) as one,
        Engine(config_of(2), {"node": str(path)}) as other,
    ):
        said = serve(one, tokens, 4)
        assert serve(other, tokens, 4) == said
        assert said.loaded_tokens == 0
        for engine in (one, other):
            assert engine.manager is not None
            assert NotLoaded.NODE_AWAY not in engine.manager.metrics.not_loaded, "it has looked"
            for seed in range(3):  # until the device has them no more
                serve(engine, prompt(1000 + seed), 4)
            assert serve(engine, tokens, 4) == Answer(said.tokens, 0, len(tokens) - 8), "it finds its own"
        assert len(node.status()["namespaces"]) == 2


def test_a_model_has_a_short_name_that_a_share_can_be_given_and_another_one_with_other_weights(tmp_path: Path) -> None:
    names: list[str] = []
    for model in (MODEL, MODEL, replace(MODEL, seed=1)):
        path = tmp_path / "node.sock"
        shares = [f"{names[0]}=30%"] if names else []
        with RealNode(path, *(f"--share={share}" for share in shares)) as node:
            with Engine(replace(config_of(), model=model), {"node": str(path)}) as engine:
                serve(engine, prompt(1), 1)
            assert node.namespace()["description"]["config"] == repr(model)
            names.append(node.namespace()["model"])
            part = node.namespace()["bytes"] / node.status()["memory_bytes"]
            assert round(part, 1) == (1.0, 0.3, 0.7)[len(names) - 1]
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("embedded-[0-9a-f]{8}", name) for name in names)


def test_a_namespace_that_finds_no_memory_costs_hits_and_nothing_else(own_node: RealNode) -> None:
    tokens, options = prompt(77), {"node": str(own_node.path)}
    with Engine(config_of(1), options) as first, Engine(config_of(2), options) as second:
        assert serve(first, tokens, 4) == serve(second, tokens, 4)
        assert first.manager is not None
        assert second.manager is not None
        assert NotLoaded.NODE_AWAY not in first.manager.metrics.not_loaded
        assert NotLoaded.NODE_AWAY in second.manager.metrics.not_loaded, "the first namespace has all the memory"


def test_without_a_node_an_engine_serves_and_attaches_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "node.sock"  # after a boot there may be no folder until the node starts
    tokens = prompt(5)
    with Engine(config_of(), {"node": str(path)}) as engine:
        assert serve(engine, tokens, 4).tokens == alone(tokens)
        (line,) = caplog.messages
        why = f"no node listens at {path} (there is no folder {path.parent})"
        assert line == f"serving without the node at {path}: {why}", "seen by who sets up no log"
        assert engine.manager is not None
        assert set(engine.manager.metrics.not_loaded) == {NotLoaded.NODE_AWAY}
        path.parent.mkdir()
        with RealNode(path) as node:

            def has_stored() -> bool:
                serve(engine, tokens, 4)
                return bool(node.status()["namespaces"]) and node.namespace()["cached"] > 0

            wait_until(has_stored)
            with Engine(config_of(), {"node": str(path)}) as other:
                assert serve(other, tokens, 4).loaded_tokens > 0


def test_after_a_reset_nothing_of_before_is_found(own_node: RealNode) -> None:
    tokens = prompt(6)
    options = {"node": str(own_node.path)}
    with Engine(config_of(), options) as engine, Engine(config_of(), options) as other:
        serve(engine, tokens, 4)
        engine.reset()
        assert serve(engine, tokens, 4).loaded_tokens == 0
        assert serve(other, tokens, 4).loaded_tokens > 0, "others have the old weights"


def test_a_node_that_is_stopped_is_not_kept_waiting_by_engines_that_step(own_node: RealNode) -> None:
    with Engine(config_of(), {"node": str(own_node.path)}) as engine:
        serve(engine, prompt(7), 4)
        own_node.process.terminate()

        def has_stopped() -> bool:
            serve(engine, prompt(7), 4)
            return own_node.process.poll() is not None

        wait_until(has_stopped)
        assert own_node.process.returncode == 0


def test_a_step_without_a_new_request_costs_no_message_but_for_blocks_that_were_filled(
    node: RealNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: Counter[int] = Counter()
    send = Connection.send

    def count(connection: Connection, frame: Frame) -> None:
        sent[frame.kind] += 1
        send(connection, frame)

    prompt_tokens, new_tokens = 37, 64
    with Engine(config_of(), {"node": str(node.path)}) as engine:
        serve(engine, prompt(11), 1)  # all that is said once is said
        monkeypatch.setattr(Connection, "send", count)
        engine.submit("r", prompt(12, prompt_tokens), new_tokens)
        engine.step()
        assert set(sent) <= {Kind.LOOK_UP, Kind.RESERVE}
        sent.clear()
        for computed in range(
            prompt_tokens, prompt_tokens + new_tokens - 2
        ):  # a token in each step, and one in the last
            assert engine.step() == []
            filled = computed // BLOCK_TOKENS - prompt_tokens // BLOCK_TOKENS
            assert set(sent) <= {Kind.RESERVE, Kind.SETTLE}
            assert sent[Kind.RESERVE] <= 1 + filled, "one for the prompt, and one for each block since"
            assert sent[Kind.SETTLE] <= prompt_tokens // BLOCK_TOKENS + filled
        assert sent[Kind.RESERVE] > 1
        engine.run()
        sent.clear()
        for _ in range(20):
            engine.step()
        assert not sent, "it rests"


def test_conversations_that_hop_between_processes_are_as_with_one_engine_alone(node: RealNode) -> None:
    said = [prompt(100 + number, 64) for number in range(3)]
    loaded = 0
    with EngineProcess(node.path) as first, EngineProcess(node.path) as second, Engine(config_of()) as reference:
        engines = [first, second]
        for turn in range(4):
            for number, tokens in enumerate(said):
                answer = engines[(turn + number) % 2].ask(tokens, 4)
                assert answer.tokens == serve(reference, tokens, 4).tokens, f"conversation {number}, turn {turn}"
                loaded += answer.loaded_tokens
                tokens += [*answer.tokens, *prompt(1000 * turn + number, 12)]
        assert [engine.close() for engine in engines] == [0, 0]
    assert loaded > 0
    node.check_at_rest()


@pytest.mark.parametrize("seed", range(2))
def test_engines_and_nodes_that_are_killed_cost_hits_and_nothing_else(own_node: RealNode, seed: int) -> None:
    rng = random.Random(seed)
    texts = [prompt(200 + number) for number in range(4)]
    expected = [alone(tokens) for tokens in texts]
    engines = [EngineProcess(own_node.path) for _ in range(2)]
    try:
        for turn in range(14):
            at, text = rng.randrange(2), rng.randrange(len(texts))
            dies = rng.choice(["engine", "node", "nobody", "nobody", "nobody"])
            engines[at].begin(texts[text], 4)
            if dies == "engine":
                engines[at].kill()
                engines[at] = EngineProcess(own_node.path)
                continue
            if dies == "node":
                own_node.kill()
                own_node.start()
            assert engines[at].answer().tokens == expected[text], f"turn {turn}"
        for tokens, answer in zip(texts, expected, strict=True):  # all come back
            for engine in engines:
                assert engine.ask(tokens, 4).tokens == answer

        def keeps_blocks() -> bool:
            """Whether an engine is attached, and its worker, too."""
            assert engines[0].ask(texts[0], 4).tokens == expected[0]
            return any(space["cached"] for space in own_node.status()["namespaces"])

        wait_until(keeps_blocks)
        assert [engine.close() for engine in engines] == [0, 0]
        own_node.check_at_rest()
        wait_until(lambda: own_node.status()["connections"] == 1)  # this one
        assert own_node.status()["engines"] == []
    finally:
        for engine in engines:
            engine.__exit__()


def test_an_engine_that_is_killed_and_started_again_finds_what_was_committed(own_node: RealNode) -> None:
    tokens = prompt(300)
    first = EngineProcess(own_node.path)
    answer = first.ask(tokens, 4)
    cached = own_node.namespace()["cached"]
    assert cached == (len(tokens) + 3) // 8
    first.kill()
    with EngineProcess(own_node.path) as second:
        again = second.ask(tokens, 4)
    assert again.tokens == answer.tokens
    assert again.loaded_tokens == len(tokens) - 8, "the first revisit is loaded, all but the last block"
    own_node.check_at_rest()
