"""How fast blocks come up from a node's tiers, beside the tier alone.

    python benchmarks/node_tiers.py [--json] [--small] [--folder PATH]

A real node process with a disk tier, and the same kind of tier without anything above it, in turns, on the same disk.
Meanwhile a process computes, as an engine does. The node's memory is full, so that what comes takes the place of
something else. Reads to memory that was never used before are not counted, of either: they may take twice as long.

get_ratio      bytes per second that come up through the node, as a share of those of the tier alone, which writes to
               memory like the node's
private_ratio  the same against a tier that writes to private memory: that is in huge pages where shared memory is not
               (the node's line about a part says how to change that)
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from goals import at_least, goal_lines
from kvtide.core import FullAttention
from kvtide.core.chain import Chain
from kvtide.core.index.index import Grant, Want
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.requests import Request
from kvtide.node.arenas import NodeArena
from kvtide.node.client import Client
from kvtide.node.described_groups import described
from kvtide.node.frames import Kind
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from kvtide.tiers import Item, open_tiers, parse_tiers
from node_process import node_process
from tiers_common import NAMESPACE, Blocks, run_calls

TOKENS = 16
STEP_S = 0.005
"""Between two looks of a scheduler: engines look once in a step."""
TIMEOUT_S = 120.0
CALL_BYTES = 4 << 20
"""Of one call, as a stack of tiers makes them."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    folder: Path
    block_bytes: int = 1 << 20
    prompt_blocks: int = 512
    """4,000 tokens of a model of 8B, at 128 KiB each."""
    prompts: int = 4
    prompts_held: int = 2
    """In the node's memory. Prompts are read in turn, so that most of each one is not there any more."""
    rounds: int = 3

    @property
    def prompt_bytes(self) -> int:
        return self.prompt_blocks * self.block_bytes

    @property
    def tier_bytes(self) -> int:
        return int(1.3 * self.prompts * self.prompt_bytes) + (64 << 20)

    @property
    def memory_bytes(self) -> int:
        return self.prompts_held * self.prompt_bytes

    def tier(self, name: str) -> dict[str, object]:
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return {"type": "disk", "path": str(path), "size": self.tier_bytes, "deadline_ms": 60_000}


def keys(prompt: int, blocks: int) -> list[bytes]:
    return [prompt.to_bytes(16, "little") + block.to_bytes(16, "little") for block in range(blocks)]


# ---------------------------------------------------------------------- who computes


def compute() -> None:
    """Do what an engine does all the time: some Python, and some numbers."""
    left = right = np.ones((128, 128), dtype=np.float32)
    while True:
        np.matmul(left, right)
        sum(range(2000))


@contextmanager
def computing() -> Iterator[None]:
    """One process that always has something to do."""
    process = multiprocessing.get_context("spawn").Process(target=compute, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


# ---------------------------------------------------------------------- the tier alone


class Alone:
    """A tier and nothing above it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._arena = NodeArena(0, settings.prompt_blocks, settings.block_bytes)
        self._arena.touch(lambda: None)
        until(lambda: self._arena.ready_slots == settings.prompt_blocks)
        private = Blocks(settings.block_bytes, settings.prompt_bytes)
        self._buffers = {
            "alone": [memoryview(row) for row in self._arena.mapped.memory],
            "private": [private.buffer(number) for number in range(settings.prompt_blocks)],
        }
        namespace = replace(NAMESPACE, block_bytes=settings.block_bytes)
        configs = parse_tiers([settings.tier("alone")])
        (self._tier,) = open_tiers(configs, namespace, rank=0, slot_bytes_max=settings.block_bytes)
        self._per_call = max(1, CALL_BYTES // settings.block_bytes)
        for prompt in range(settings.prompts):
            run_calls(self._tier.put, self._tier, self._items(prompt, "private"), self._per_call)

    def get(self, prompt: int, way: str) -> float:
        """Return the seconds that a prompt takes, to memory of some kind."""
        begin_s = time.perf_counter()
        run_calls(self._tier.get, self._tier, self._items(prompt, way), self._per_call)
        return time.perf_counter() - begin_s

    def _items(self, prompt: int, way: str) -> list[Item]:
        return list(map(Item, keys(prompt, self._settings.prompt_blocks), self._buffers[way]))

    def close(self) -> None:
        self._tier.close()
        self._buffers.clear()
        self._arena.close()


# ---------------------------------------------------------------------- through a node


class Engine:
    """A scheduler and a worker at a node."""

    def __init__(self, socket: Path, settings: Settings) -> None:
        self._settings = settings
        self._socket = socket
        groups = (FullAttention(TOKENS),)
        namespace = {"model": "benchmark", "groups": described(groups), "parts": [settings.block_bytes]}
        self._link = IndexLink(socket, Hello(Role.SCHEDULER, engine="engine", namespace=namespace), lambda _: None)
        self._index = RemoteIndex(self._link, groups)
        self._requests = 0
        until(lambda: self._index.receive() is not None and self._link.pool is not None)
        assert self._link.pool is not None
        epoch, owner = self._link.pool.epoch, self._link.pool.owner
        self._worker = Client(socket, Hello(Role.WORKER, engine="engine", epoch=epoch, owner=owner))
        self._worker.wait(TIMEOUT_S)
        until(lambda: self._space()["ready_slots"] == self._link.slots)
        self._index.grow(self._link.slots)

    def _space(self) -> dict[str, object]:
        operator = Client(self._socket, Hello(Role.OPERATOR))
        operator.wait(TIMEOUT_S)
        answer = operator.ask(Kind.STATUS, timeout_s=TIMEOUT_S)
        operator.close()
        assert answer is not None
        (space,) = json.loads(answer.body)["namespaces"]
        found: dict[str, object] = space
        return found

    def store(self, prompt: int) -> None:
        """Store a prompt, and wait until it has sunk."""
        blocks = self._settings.prompt_blocks
        before = self._moved_bytes("bytes_put")
        answers: list[list[Grant]] = []
        chain = Chain(0, keys(prompt, blocks), None, TOKENS, list(range(1, blocks + 1)))
        self._index.reserve([Want(chain, needs_prefix=False, touch=False)], blocks, answers.append)
        until(lambda: not self._index.plan() and not self._index.receive() and bool(answers))
        ((grant,),) = answers
        assert grant.blocks == blocks, grant
        memory = self._worker.arenas[0].memory
        for run in grant.runs:
            for slot in run.slots:
                memory[slot, :8] = np.frombuffer(prompt.to_bytes(8, "little"), dtype=np.uint8)
        self._index.settle(grant.runs, kept=True)
        self._index.plan()
        until(lambda: self._moved_bytes("bytes_put") - before >= self._settings.prompt_bytes, 0.05)

    def _moved_bytes(self, counter: str) -> int:
        tiers = self._space()["tiers"]
        assert isinstance(tiers, list)
        return sum(int(tier[counter]) for tier in tiers)

    def get(self, prompt: int) -> float:
        """Return the seconds from the first question until a whole prompt is there, leased, if all of it had to come.

        What was still in memory is left out: as if the rest had come at the same rate.
        """
        before = self._moved_bytes("bytes_got")
        self._requests += 1
        blocks = self._settings.prompt_blocks
        request = Request(f"r{self._requests}", [keys(prompt, blocks)], [[]])
        begin_s = time.perf_counter()
        while True:
            match = self._index.look_up(request, 0, blocks * TOKENS + 1, lambda _: True)
            if not match.waits:
                break
            self._index.plan()
            time.sleep(STEP_S)
        seconds = time.perf_counter() - begin_s
        assert match.tokens == blocks * TOKENS, match.missed
        memory = self._worker.arenas[0].memory
        expected = np.frombuffer(prompt.to_bytes(8, "little"), dtype=np.uint8)
        assert all((memory[slot, :8] == expected).all() for slot in match.slots)
        self._index.release(self._index.lease(match))
        self._index.drop(request)
        self._index.plan()
        return seconds * self._settings.prompt_bytes / (self._moved_bytes("bytes_got") - before)

    def close(self) -> None:
        self._link.close()
        self._worker.close()
        for arena in self._worker.arenas:
            arena.close()


def until(holds: Callable[[], bool], pause_s: float = STEP_S) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < end_s, "it does not happen"
        time.sleep(pause_s)


# ---------------------------------------------------------------------- measuring


def measure(settings: Settings) -> dict[str, object]:
    """Read every prompt in both ways, in turns."""
    times: dict[str, list[float]] = {"alone": [], "private": [], "node": []}
    alone = Alone(settings)
    with node_process(settings.memory_bytes, "--tier", json.dumps(settings.tier("node"))) as socket, computing():
        engine = Engine(socket, settings)
        for prompt in range(settings.prompts):
            engine.store(prompt)
        for nth in range(settings.prompts_held + settings.rounds * settings.prompts):
            prompt = nth % settings.prompts
            ways = {way: alone.get(prompt, way) for way in ("alone", "private")}
            ways["node"] = engine.get(prompt)
            if nth >= settings.prompts_held:  # the first ones warm memory up
                for way, seconds in ways.items():
                    times[way].append(seconds)
        engine.close()
    alone.close()
    rates = {way: settings.prompt_bytes / statistics.median(taken) / 1e9 for way, taken in times.items()}

    def ratio(way: str) -> float:
        turns = zip(times[way], times["node"], strict=True)
        return round(statistics.median(other_s / node_s for other_s, node_s in turns), 3)

    return {
        "block_bytes": settings.block_bytes,
        "prompt_bytes": settings.prompt_bytes,
        **{f"{way}_gbps": round(rate, 4) for way, rate in rates.items()},
        "get_ratio": ratio("alone"),
        "private_ratio": ratio("private"),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--small", action="store_true", help="little, to see that it works")
    parser.add_argument("--folder", type=Path, help="on which disk; a folder is made there and removed")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        settings = Settings(folder)
        if args.small:
            settings = replace(settings, block_bytes=64 << 10, prompt_blocks=16, rounds=1)
        result = measure(settings)
    finally:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14} {value}")
    goals = [at_least("get_ratio", float(str(result["get_ratio"])), 0.85)]
    print("\n".join(goal_lines(goals, small=args.small)))


if __name__ == "__main__":
    main()
