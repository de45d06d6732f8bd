"""Kills engines, workers and nodes with -9, round after round, and looks whether anybody says anything else or leaks.

python -m tests.vllm.soak_node --rounds 100 [--seed 1]

Two real engines at one node: the first is one process, the second has its worker in another one. In each round both
answer prompts, one process is killed in the middle of that and started again, and conversations hop between the
engines. Everything that is said is compared with what an engine without kvtide says. After each round nothing may be
left of what has been killed (processes, memory of a node, leases), and the living may not have grown.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.vllm.family import adopt_orphans, command_of, descendants, family_of, memory_bytes, nodes_memory
from tests.vllm.llm import Result, prompt
from tests.vllm.models import write_llama
from tests.vllm.node_rig import EngineProcess, NodeProcess, Said, children_of, is_alive, wait_until

VICTIMS = ("engine", "engine with a worker", "worker", "node")
PROMPTS = [prompt(seed, 150 + 50 * (seed % 8)) for seed in range(16)]
MAX_TOKENS = 24
RANKS = (0, 1)
"""Of the two engines: 0 is all in one process."""
NODE_BYTES = 8 << 20
ENGINE_SLACK_BYTES = 64 << 20
"""By how much one may grow. PyTorch keeps something for each new shape of a batch: 2 MiB in a round at first."""
NODE_SLACK_BYTES = 4 << 20
"""A node stays within 0.1 MiB."""
SHARED_SLACK_BYTES = 4 << 20
"""For what else than the node's memory an engine shares with its worker: 0.2 MiB."""


class Soak:
    """Engines, a node, and what they should say."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._draw = random.Random(seed)
        self._folder = folder
        self._path = folder / "node.sock"
        self._model = write_llama(folder / "model")
        self._expected = self._reference()
        self._logs = 0
        self.counts: Counter[str] = Counter()
        self._node = self._start_node()
        self._engines = [self._start_engine(ranks) for ranks in RANKS]
        for engine in self._engines:
            engine.wait_for_start()
        self._usual: dict[str, int] = {}

    def _reference(self) -> list[Result]:
        plain = EngineProcess(self._model, None, self._folder / "plain.log").wait_for_start()
        results = plain.say(*PROMPTS, max_tokens=MAX_TOKENS, forget=False).results
        assert plain.stop() == 0
        return results

    def _start_node(self) -> NodeProcess:
        self._logs += 1
        return NodeProcess(self._path, self._folder / f"node-{self._logs}.log", memory=str(NODE_BYTES))

    def _start_engine(self, ranks: int) -> EngineProcess:
        self._logs += 1
        return EngineProcess(self._model, self._path, self._folder / f"engine-{self._logs}.log", ranks)

    def round(self, victim: str) -> None:
        """Kill one of them while both engines answer, start it again, and look at everything."""
        self.counts[victim] += 1
        busy = [self._draw.sample(range(len(PROMPTS)), 4) for _ in self._engines]
        dying = {"engine": 0, "engine with a worker": 1, "worker": 1}.get(victim)
        workers = self._engines[1].workers()
        for engine, numbers in zip(self._engines, busy, strict=True):
            engine.begin(*(PROMPTS[number] for number in numbers), max_tokens=MAX_TOKENS)
        time.sleep(self._draw.random() * 0.6)
        self._kill(victim, workers)
        for number, engine in enumerate(self._engines):
            if number != dying:
                self._compare(engine.answer(), busy[number])
        self._start_again(victim)
        self._hop()
        self._check_leaks()

    def _kill(self, victim: str, workers: list[int]) -> None:
        if victim == "node":
            self._node.kill()
            return
        engine = self._engines[0 if victim == "engine" else 1]
        family = [engine.process.pid, *children_of(engine.process.pid)]
        if victim == "worker":
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            with suppress(BrokenPipeError):  # it has noticed
                engine.begin(PROMPTS[0])  # an engine that has nothing to do does not
            engine.process.wait(60)
        engine.kill()
        wait_until(lambda: not any(map(is_alive, family)), "nothing of the engine is left")

    def _start_again(self, victim: str) -> None:
        if victim == "node":
            self._node = self._start_node()
            return
        number = 0 if victim == "engine" else 1
        self._wait_for_engines(1)
        self._engines[number] = self._start_engine(RANKS[number]).wait_for_start()

    def _hop(self) -> None:
        """Let one engine compute, or load, and the other one load."""
        numbers = self._draw.sample(range(len(PROMPTS)), 3)
        for engine in self._engines:
            self._attached(engine)
        first, second = self._draw.sample(self._engines, 2)
        for engine in (first, second):
            said = engine.say(*(PROMPTS[number] for number in numbers), max_tokens=MAX_TOKENS)
            self._compare(said.numbers, numbers)
        self.counts["tokens loaded from the other engine"] += sum(said.cached)
        whole = [(len(PROMPTS[number]) - 1) // 32 * 32 for number in numbers]
        assert said.cached == whole, f"{said.cached} tokens were loaded, not {whole}"

    def _attached(self, engine: EngineProcess) -> None:
        """Wait until an engine has found the node: it then loads what it has just stored."""

        def loads() -> bool:
            said = [engine.say(PROMPTS[0], max_tokens=MAX_TOKENS) for _ in range(2)][-1]
            self._compare(said.numbers, [0])
            return said.cached[0] > 0

        wait_until(loads, "the engine attaches")

    def _compare(self, answer: dict[str, Any], numbers: list[int]) -> None:
        results = Said(answer).results
        assert len(results) == len(numbers)
        for result, number in zip(results, numbers, strict=True):
            assert result.same_as(self._expected[number]), f"prompt {number}: {result} instead of the expected"
        self.counts["answers compared"] += len(numbers)

    def _wait_for_engines(self, count: int) -> dict[str, Any]:
        wait_until(lambda: len(self._node.status()["engines"]) == count, f"{count} engines are at the node")
        return self._node.status()

    def _check_leaks(self) -> None:
        status = self._wait_for_engines(len(self._engines))
        self._check_slots(status)
        self._check_processes()
        for number, engine in enumerate(self._engines):
            found = engine.ask(look=True)
            assert found["pins"] == [0, 0, 0]
            for rank in found["ranks"]:
                assert len(rank["mapped"]) == 1, f"memory of nodes that are gone: {rank['mapped']}"
                self._is_usual(f"descriptors of engine {number}", rank["descriptors"])
                self._is_usual(f"threads of engine {number}", len(rank["threads"]))
        self._is_usual("descriptors of the node", len(os.listdir(f"/proc/{self._node.process.pid}/fd")))
        self._is_usual("threads of the node", len(os.listdir(f"/proc/{self._node.process.pid}/task")))

    def _check_slots(self, status: dict[str, Any]) -> None:
        [space] = status["namespaces"]
        held = {name: space[name] for name in ("leased", "writing", "quarantined")}
        assert not any(held.values()), f"the node holds {held}"
        assert space["free"] + space["cached"] == space["ready_slots"]

    def _check_processes(self) -> None:
        """See that there are those of the node and of the engines, and no others, and what memory they have."""
        families = {"the node": [self._node.process.pid]}  # what has touched its memory for it has ended
        families |= {f"engine {number}": family_of(engine.process.pid) for number, engine in enumerate(self._engines)}
        self._wait_for_family([pid for family in families.values() for pid in family])
        assert len(nodes_memory(descendants())) == 1, "memory of a node that is gone"
        for name, family in families.items():
            self._is_usual(f"processes of {name}", len(family))
            own, shared = (sum(memory_bytes(pid, kind) for pid in family) for kind in ("RssAnon", "RssShmem"))
            self._is_usual(f"bytes of {name}", own, NODE_SLACK_BYTES if name == "the node" else ENGINE_SLACK_BYTES)
            assert shared <= NODE_BYTES + SHARED_SLACK_BYTES, f"{name} has {shared} bytes of shared memory"

    def _wait_for_family(self, expected: list[int]) -> None:
        """Wait until only these processes live, of all that were started."""
        try:
            wait_until(lambda: set(descendants()) <= set(expected), "no other process is left")
        except AssertionError as error:
            others = {pid: command_of(pid) for pid in set(descendants()) - set(expected)}
            raise AssertionError(f"processes that nobody has ended: {others}") from error

    def _is_usual(self, what: str, count: int, slack: int = 0) -> None:
        """See that there is no more of something than at the end of the first round."""
        usual = self._usual.setdefault(what, count)
        assert count <= usual + slack, f"{what}: {count}, and {usual} at first"

    def close(self) -> None:
        """End all in good order."""
        for engine in self._engines:
            assert engine.stop() == 0
        self._wait_for_engines(0)
        assert self._node.stop() == 0
        assert not self._path.exists()
        self._wait_for_family([])

    def kill(self) -> None:
        """End all at once, also what should have ended by itself."""
        for pid in descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    asked = parser.parse_args()
    adopt_orphans()
    _put(f"soak-node: {asked.rounds} rounds, --seed {asked.seed}")
    with tempfile.TemporaryDirectory(prefix="kvtide-soak-") as folder:
        soak = Soak(Path(folder), asked.seed)
        draw = random.Random(asked.seed)
        try:
            for number in range(asked.rounds):
                victim = asked.victims[number % len(asked.victims)] if number < 4 else draw.choice(asked.victims)
                began_s = time.monotonic()
                soak.round(victim)
                _put(f"round {number + 1}: killed the {victim}, {time.monotonic() - began_s:.0f} s")
            soak.close()
        finally:
            soak.kill()
    _put("nothing leaked; " + ", ".join(f"{name}: {count}" for name, count in sorted(soak.counts.items())))
    return 0


def _put(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
