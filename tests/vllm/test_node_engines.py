"""Two real engines and a real node in their own processes: conversations that hop, and what is left when one dies.

All of it is one story, because engines take long to start; each test says what must have been so.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conversations import ANSWER_TOKENS, Conversation, full_blocks, whole
from tests.vllm.llm import Result, engine, prompt
from tests.vllm.node_rig import EngineProcess, NodeProcess, children_of, is_alive, wait_until

SEEDS = range(3)
LONG = [prompt(77, 600), prompt(78, 600)]


@pytest.fixture(scope="module")
def alone(llama: Path) -> list[Conversation]:
    """What an engine without kvtide says, all by itself."""
    with engine(llama, None) as plain:
        return [whole(seed, lambda history: plain.generate(history, max_tokens=ANSWER_TOKENS)[0]) for seed in SEEDS]


class Story:
    """What happens, and what was seen on the way."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.path = folder / "node.sock"
        self.seen: dict[str, Any] = {}
        self.talks = [Conversation(seed) for seed in SEEDS]
        self.engines: list[EngineProcess] = []
        self.nodes: list[NodeProcess] = []

    def start_node(self) -> NodeProcess:
        self.nodes.append(NodeProcess(self.path, self.folder / f"node-{len(self.nodes)}.log"))
        return self.nodes[-1]

    def start_engine(self, ranks: int = 0) -> EngineProcess:
        log = self.folder / f"engine-{len(self.engines)}.log"
        self.engines.append(EngineProcess(self.model, self.path, log, ranks))
        return self.engines[-1]

    def turn(self, engine: EngineProcess) -> list[int]:
        """Let an engine answer the next turn of every conversation; return how much it had not to compute."""
        cached = []
        for talk in self.talks:

            def say(history: Any) -> Result:
                said = engine.say(history, max_tokens=ANSWER_TOKENS)
                assert said.numbers["pins"] == [0, 0, 0]
                return said.results[0]

            cached.append(talk.turn(say).cached_tokens)
        return cached

    def kill_in_the_middle(self, engine: EngineProcess, pid: int) -> None:
        """Kill a process of an engine while it computes and stores."""

        def stored() -> int:
            return sum(space["cached"] + space["writing"] for space in self.nodes[-1].status()["namespaces"])

        before = stored()
        engine.begin(*LONG, max_tokens=64)
        wait_until(lambda: stored() > before, "something is being stored")
        os.kill(pid, signal.SIGKILL)

    def at_rest(self, engines: int) -> dict[str, Any]:
        """Wait until the node has only so many engines, and holds nothing for others."""
        status = self.nodes[-1].status
        wait_until(lambda: len(status()["engines"]) == engines, f"{engines} engines are left")
        return status()

    def close(self) -> None:
        for started in self.engines:
            if started.process.poll() is None:
                started.kill()
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()


def tell(story: Story) -> None:
    seen = story.seen
    first, second = story.start_engine(), story.start_engine(ranks=1)
    node = story.start_node()  # while they start, or after that
    first.wait_for_start(), second.wait_for_start()
    # Turns hop from one engine to the other.
    seen["expected 1"] = [0] * len(story.talks)
    seen["turn 1"] = story.turn(first)
    seen["expected 2"] = [full_blocks(talk.history) for talk in story.talks]
    seen["turn 2"] = story.turn(second)
    seen["namespaces"] = node.status()["namespaces"]
    # The second engine's worker dies, and with it that engine.
    [worker] = second.workers()
    family = children_of(second.process.pid)
    story.kill_in_the_middle(second, worker)
    second.process.wait(60)
    wait_until(lambda: not any(map(is_alive, family)), "no process of it is left")
    seen["after the worker"] = story.at_rest(1)
    # The first engine dies, and is started again.
    story.kill_in_the_middle(first, first.process.pid)
    seen["after the engine"] = story.at_rest(0)
    again = story.start_engine().wait_for_start()
    seen["expected 3"] = [full_blocks(talk.history) for talk in story.talks]
    seen["turn 3"] = story.turn(again)
    seen["before the node"] = again.ask(look=True)
    # The node dies, and another one comes.
    node.kill()
    seen["without a node"] = again.say(LONG[0], max_tokens=ANSWER_TOKENS).results
    story.start_node()
    wait_until(lambda: again.say(LONG[0], max_tokens=ANSWER_TOKENS).cached[0] > 0, "it attaches and loads")
    seen["with another node"] = again.say(LONG[0], max_tokens=ANSWER_TOKENS).results
    seen["after the node"] = again.ask(look=True)
    seen["log"] = again.lines()
    # All end in good order.
    seen["engine's code"] = again.stop()
    seen["at the end"] = story.at_rest(0)
    seen["node's code"] = story.nodes[-1].stop()
    seen["left over"] = sorted(path.name for path in story.folder.glob("node.sock*"))


@pytest.fixture(scope="module")
def story(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = Story(llama, tmp_path_factory.mktemp("node"))
    try:
        tell(story)
    finally:
        story.close()
    return story


def test_f25_conversations_that_hop_between_engines_say_what_one_engine_says_alone(
    story: Story, alone: list[Conversation]
) -> None:
    for talk, expected in zip(story.talks, alone, strict=True):
        assert len(talk.answers) == 3
        assert talk.is_like(expected)


def test_f25_what_the_other_engine_has_computed_is_loaded(story: Story) -> None:
    assert story.seen["turn 1"] == story.seen["expected 1"]
    assert story.seen["turn 2"] == story.seen["expected 2"]
    assert len(story.seen["namespaces"]) == 1, "an engine in one process and one with a worker are alike"


def test_f26_an_engine_that_was_killed_finds_all_that_was_stored_when_it_is_started_again(story: Story) -> None:
    assert story.seen["turn 3"] == story.seen["expected 3"]


@pytest.mark.parametrize("moment", ["after the worker", "after the engine", "at the end"])
def test_f28_nothing_is_left_of_what_a_dead_process_held(story: Story, moment: str) -> None:
    for space in story.seen[moment]["namespaces"]:
        assert (space["leased"], space["writing"], space["quarantined"]) == (0, 0, 0)
        assert space["free"] + space["cached"] == space["ready_slots"]


def test_f29_an_engine_says_the_same_without_its_node_and_with_the_next_one(story: Story) -> None:
    [computed], [loaded] = story.seen["without a node"], story.seen["with another node"]
    assert computed.cached_tokens == 0
    assert loaded.cached_tokens == full_blocks(LONG[0][:-1])
    assert loaded.same_as(computed)
    lines = [line.partition("kvtide: ")[2] for line in story.seen["log"].splitlines() if "the node at" in line]
    without = [line for line in lines if line.startswith("serving without the node")]
    assert 0 < len(without) == len(set(without)), "one line for each reason: it has gone, and nobody listens there"
    assert sum(line.startswith("attached to the node") for line in lines) >= 2


def test_the_memory_and_descriptors_of_a_dead_node_are_given_back(story: Story) -> None:
    [before], [after] = story.seen["before the node"]["ranks"], story.seen["after the node"]["ranks"]
    assert len(before["mapped"]) == len(after["mapped"]) == 1
    assert before["mapped"] != after["mapped"]
    assert after["descriptors"] == before["descriptors"]
    assert after["threads"] == before["threads"]


def test_all_end_in_good_order(story: Story) -> None:
    assert (story.seen["engine's code"], story.seen["node's code"]) == (0, 0)
    assert story.seen["left over"] == []
