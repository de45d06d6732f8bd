"""What a node costs an engine, beside the pool in the engine's own process.

    python benchmarks/node.py [--json] [--small]

A real node process and real engines' schedulers. Prompts have 16,000 tokens (1,000 keys).

lookup_ms_p99           a look-up with lease, at an engine, while 8 engines look up, store and release
lookup_on_core_ms_p99   the same without the time in which the engine or the node was ready to go on and had no core
lookup_cpu_ms_p99       processor time of the engine and of the node from the question to the answer: also what the node
                        does for others first, and nothing that other processes of the machine do
scheduler_cost_ratio    scheduler's processor time per block, stored and loaded, node against own pool (the larger one).
                        Both pools are full, and take turns; the median of all turns
other_engine_ttft_ratio TTFT of a document that another engine has computed, against a hit in the engine's own pool
found_after_kill        an engine is killed with -9 and started again: how much of what was committed it finds
copy_rate_ratio         rate of copies to and from the node's memory, against private memory

An engine is *busy* when its GPU is: it computes 2 such prompts a second, 32,000 tokens, which are stored, and loads 10,
which for a model of 8B are 20 GB/s of the 55 that PCIe has. They come at random times, whether or not the last one is
done, as those of a server do. A loop that asks again as soon as it is answered would measure how fast the cores of
this machine can generate load: 8 engines and the node have 9 processes that never sleep then. Real engines have other
cores for their schedulers: what part of the time is only that here there are too few is told by the kernel
(/proc/PID/schedstat, the time that a process waited for a core), and is left out of `lookup_on_core_ms`.

The embedded engines of `other_engine_ttft_ratio` and `found_after_kill` wait longer for the node than kvtide does: what
a machine with too few cores answers late is late there, and no miss. All else has the deadlines of kvtide.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import node_engines
from goals import Goal, at_least, at_most, goal_lines
from kvtide.core import FullAttention, Geometry, Match, OffloadConfig, OffloadManager, Report
from kvtide.core.index.remote import RemoteIndex
from kvtide.engine.block_pool import BlockPool
from kvtide.node.client import Client
from kvtide.node.credentials import credentials_of
from kvtide.node.described_groups import described
from kvtide.node.frames import Kind
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from node_process import node_process

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 1_000
BLOCK_BYTES = 4096
PROMPTS_HELD = 16
"""That the node's memory has room for, per engine."""
ENGINES = 8
STORES_PER_S, LOADS_PER_S = 2, 10
"""Of each engine."""
STEP_BLOCKS = 8192 // BLOCK_TOKENS
"""That one step computes: `max_num_batched_tokens` of vLLM's servers."""
STEP_S = 0.01
"""Between two plans of a busy engine, for as long as it stores."""
TIMEOUT_S = 60.0


class Took(NamedTuple):
    """How long something took."""

    wall_s: float
    on_core_s: float
    """Without the time in which the engine or the node waited for a core."""
    cpu_s: float
    """Processor time of the engine and of the node, for whomever that was."""


class Engine:
    """A scheduler without a device that computes: every prompt is there at once, every copy done when it is planned."""

    def __init__(self, name: str, socket: Path | None, slots: int, device_blocks: int = 4 * PROMPT_BLOCKS) -> None:
        groups = (FullAttention(BLOCK_TOKENS),)
        self.device = BlockPool(device_blocks)
        self.link: IndexLink | None = None
        index = None
        if socket is not None:
            namespace = {"model": "benchmark", "groups": described(groups), "parts": [BLOCK_BYTES]}
            self.link = IndexLink(socket, Hello(Role.SCHEDULER, engine=name, namespace=namespace), _tell)
            index = RemoteIndex(self.link, groups)
        geometry = Geometry(groups=groups, block_bytes=BLOCK_BYTES, device_blocks=self.device.num_blocks)
        config = OffloadConfig.build(geometry, {"host": BLOCK_BYTES * slots, "pin_budget": self.device.num_blocks})
        self.manager = OffloadManager(config, self.device, index=index)
        self.worker = self._attach(socket, name) if socket is not None else None
        self._node_pid = 0 if self.worker is None else credentials_of(self.worker._connection.socket).pid

    def _attach(self, socket: Path, name: str) -> Client:
        assert self.link is not None
        end_s = time.monotonic() + TIMEOUT_S
        while (pool := self.manager.plan().pool) is None:
            assert time.monotonic() < end_s, "there is no node"
            time.sleep(0.005)
        worker = Client(socket, Hello(Role.WORKER, engine=name, epoch=pool.epoch, owner=pool.owner))
        worker.wait(TIMEOUT_S)
        wait_until_ready(socket)
        self.manager.report(Report(0, slots_ready=self.link.slots, life=pool.life))
        return worker

    def store(self, prompt: int, size: int = PROMPT_BLOCKS, step_s: float = 0.0005) -> float:
        """Compute a prompt and store it; return the processor time of the scheduler."""
        name, keys = f"store-{prompt}", make_keys(prompt, size)
        blocks = self.device.allocate(size)
        assert blocks is not None
        self.manager.add_request(name, [keys], [blocks])
        for position, (block, key) in enumerate(zip(blocks, keys, strict=True)):
            parent = keys[position - 1] if position else None
            self.device.register(block, 0, key, parent, (position + 1) * BLOCK_TOKENS)
        self.manager.admit(name, 0)
        computed, stored, spent = 0, 0, 0.0
        end_s = time.monotonic() + TIMEOUT_S
        while stored < size:
            assert time.monotonic() < end_s, f"{stored} blocks stored: {self.manager.metrics.not_stored}"
            begin = time.thread_time()
            if computed < size:
                computed = min(size, computed + STEP_BLOCKS)
                self.manager.advance(name, computed * BLOCK_TOKENS)
            plan = self.manager.plan()
            stored += sum(len(copy.slots) for copy in plan.stores)
            self.manager.report(Report(0, tuple(copy.id for copy in plan.stores)))
            spent += time.thread_time() - begin
            time.sleep(step_s)
        begin = time.thread_time()
        self.manager.finish(name)
        spent += time.thread_time() - begin
        self.device.free(blocks)
        return spent

    def load(self, prompt: int, nth: int, size: int = PROMPT_BLOCKS) -> tuple[Took, float]:
        """Look a prompt up and load it; return the time of the look-up and the scheduler's processor time."""
        name, keys = f"load-{prompt}-{nth}", make_keys(prompt, size)
        self.manager.add_request(name, [keys], [blocks := []])
        tokens = size * BLOCK_TOKENS + 1
        waited_s, node_s = self._waited_for_cores_s(), self._node_cpu_s()
        begin, begin_s = time.thread_time(), time.perf_counter()
        match = self._until_found(name, tokens)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - begin
        node_s = self._node_cpu_s() - node_s
        lookup = Took(wall_s, max(cpu_s, wall_s - (self._waited_for_cores_s() - waited_s)), cpu_s + node_s)
        begin = time.thread_time()
        self.manager.reserve(match)
        spent = cpu_s + time.thread_time() - begin
        found = self.device.allocate(size)
        assert found is not None
        blocks += found
        begin = time.thread_time()
        self.manager.admit(name, match.tokens)
        plan = self.manager.plan()
        self.manager.report(Report(0, tuple(copy.id for copy in plan.loads)))
        self.manager.finish(name)
        spent += time.thread_time() - begin
        assert match.tokens == size * BLOCK_TOKENS, match
        self.device.free(found)
        return lookup, spent

    def _until_found(self, name: str, tokens: int) -> Match:
        end_s = time.monotonic() + TIMEOUT_S
        while (match := self.manager.match(name, 0, tokens)).waits:
            assert time.monotonic() < end_s
            time.sleep(0.0005)  # as a step would take: who asks on and on takes the node's core away
        return match

    def _waited_for_cores_s(self) -> float:
        """How long this process and the node have been ready to run and had no core, since they began."""
        if self.worker is None:
            return 0.0
        pids = (os.getpid(), self._node_pid)
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9

    def _node_cpu_s(self) -> float:
        """Processor time that the node has had, since it began."""
        return 0.0 if self.worker is None else time.clock_gettime(~self._node_pid << 3 | 2)  # as clock_getcpuclockid(3)

    def close(self) -> None:
        if self.worker is not None and self.link is not None:
            self.worker.close()
            self.link.close()


def _tell(line: str) -> None:
    """Say something for people, beside the result."""
    print(line, file=sys.stderr)


def wait_until_ready(socket: Path) -> None:
    """Wait until the node has touched all of its memory."""
    operator = Client(socket, Hello(Role.OPERATOR))
    operator.wait(TIMEOUT_S)
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        answer = operator.ask(Kind.STATUS, timeout_s=TIMEOUT_S)
        assert answer is not None
        (space,) = json.loads(answer.body)["namespaces"]
        if space["ready_slots"] == space["slots"]:
            break
        assert time.monotonic() < end_s, "the node's memory does not get ready"
        time.sleep(0.05)
    operator.close()


def make_keys(prompt: int, size: int) -> list[bytes]:
    """32 bytes each, like vLLM's."""
    head = prompt.to_bytes(8, "little") * 3
    return [head + block.to_bytes(8, "little") for block in range(size)]


def be_busy(socket: Path, number: int, seconds: float, results: Pipe) -> None:
    """One of several engines: stores a prompt, then looks up and loads its own prompts and those of others."""
    engine = Engine(f"engine {number}", socket, 1)
    for prompt in range(4):
        engine.store(1000 * number + prompt)
    results.send(None)
    results.recv()
    took, nth, now_s = [], 0, time.monotonic()
    come, end_s = random.Random(number), now_s + seconds  # noqa: S311 (when requests come is no secret)
    while now_s < end_s:
        nth += 1
        now_s += come.expovariate(STORES_PER_S + LOADS_PER_S)
        time.sleep(max(0.0, now_s - time.monotonic()))
        if come.random() < STORES_PER_S / (STORES_PER_S + LOADS_PER_S):
            engine.store(1000 * number + 10 + nth, step_s=STEP_S)
        else:
            took.append(engine.load(1000 * number + nth % 4, nth)[0])
    results.send(took)
    engine.close()


def lookups(engines: int, seconds: float) -> list[Took]:
    memory = engines * PROMPTS_HELD * PROMPT_BLOCKS * BLOCK_BYTES
    context = multiprocessing.get_context("spawn")
    with node_process(memory) as socket:
        pipes = [context.Pipe() for _ in range(engines)]
        processes = [
            context.Process(target=be_busy, args=(socket, number, seconds, theirs))
            for number, (_, theirs) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for ours, _ in pipes:
            ours.recv()
        for ours, _ in pipes:
            ours.send(None)
        took = [each for ours, _ in pipes for each in ours.recv()]
        for process in processes:
            process.join()
    return took


def growth(lengths: Sequence[int], times: int) -> dict[str, float]:
    """Return the median time of a look-up in ms, on a core, by its keys: of one engine, which does nothing else."""
    result = {}
    for size in lengths:
        with node_process(2 * size * BLOCK_BYTES) as socket:
            engine = Engine("engine", socket, 1, device_blocks=2 * size)
            engine.store(0, size)
            took = [engine.load(0, nth, size)[0].on_core_s for nth in range(times)]
            result[str(size)] = round(statistics.median(took) * 1e3, 3)
            engine.close()
    return result


def percentile_ms(times_s: Iterable[float], share: float) -> float:
    ordered = sorted(times_s)
    return round(ordered[int(len(ordered) * share)] * 1e3, 3)


class Cost(NamedTuple):
    """Processor time of the scheduler for each prompt, in seconds."""

    own: list[float]
    node: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(there / own for own, there in zip(self.own, self.node, strict=True))

    def block_us(self) -> dict[str, float]:
        """Return the median for one block."""
        own, there = (statistics.median(each) / PROMPT_BLOCKS * 1e6 for each in self)
        return {"own": round(own, 2), "node": round(there, 2)}


def costs(prompts: int) -> tuple[Cost, Cost]:
    """Return what storing costs, and loading. They take turns, so that noise of the machine meets both alike."""
    slots = PROMPTS_HELD * PROMPT_BLOCKS
    stored, loaded = Cost([], []), Cost([], [])
    with node_process(slots * BLOCK_BYTES) as socket:
        engines = Engine("own", None, slots), Engine("at the node", socket, slots)
        for prompt in range(PROMPTS_HELD + prompts):  # the first ones fill the pools
            for engine, cost in zip(engines, stored, strict=True):
                cost.append(engine.store(prompt))
        for nth in range(prompts):
            for engine, cost in zip(engines, loaded, strict=True):
                cost.append(engine.load(PROMPTS_HELD + prompts - 1 - nth % 8, nth)[1])
        for engine in engines:
            engine.close()
    return Cost(stored.own[PROMPTS_HELD:], stored.node[PROMPTS_HELD:]), loaded


def engines_on_a_node(*, small: bool) -> dict[str, object]:
    """Return what engines gain, and what it costs them (node_engines.py)."""
    documents, rounds = (2, 3) if small else (12, 41)
    with node_process(node_engines.memory_for(documents)) as socket:
        own_ms, other_ms = node_engines.other_engine_ttft(socket, documents)
    with node_process(node_engines.memory_for(documents)) as socket:
        found, first_was_loaded = node_engines.found_after_kill(socket, documents)
    with node_process(node_engines.COPY_BLOCKS * node_engines.COPY_LAYERS * node_engines.COPY_FRAGMENT_BYTES) as socket:
        rates, pages = node_engines.copy_rates(socket, rounds)
    return {
        "other_engine_ttft_ratio": round(other_ms / own_ms, 3),
        "ttft_ms": {"own": round(own_ms, 2), "other": round(other_ms, 2)},
        "found_after_kill": round(found, 4),
        "first_revisit_loaded": first_was_loaded,
        "copy_rate_ratio": round(rates["node"] / rates["private"], 3),
        "copy_gb_per_s": {name: round(rate, 2) for name, rate in rates.items()},
        "node_memory": pages,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--small", action="store_true", help="few prompts, to see that it works")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for part in measure(small=args.small):
        result |= part
        if not args.json:
            print("\n".join(f"{name:24} {value}" for name, value in part.items()), flush=True)
    print(json.dumps(result) if args.json else "\n".join(goal_lines(goals(result), small=args.small)))


def measure(*, small: bool) -> Iterator[dict[str, Any]]:
    """Measure one thing after the other; what is there is said before the next one begins."""
    prompts, seconds = (8, 1.0) if small else (60, 10.0)
    stored, loaded = costs(prompts)
    yield {
        "scheduler_cost_ratio": round(max(stored.ratio, loaded.ratio), 2),
        "store_cost_ratio": round(stored.ratio, 2),
        "load_cost_ratio": round(loaded.ratio, 2),
        "store_us": stored.block_us(),
        "load_us": loaded.block_us(),
    }
    took = lookups(2 if small else ENGINES, seconds)
    alone = lookups(1, seconds)
    yield {
        "lookup_ms_p50": percentile_ms((each.wall_s for each in took), 0.5),
        "lookup_ms_p99": percentile_ms((each.wall_s for each in took), 0.99),
        "lookup_on_core_ms_p50": percentile_ms((each.on_core_s for each in took), 0.5),
        "lookup_on_core_ms_p99": percentile_ms((each.on_core_s for each in took), 0.99),
        "lookup_cpu_ms_p50": percentile_ms((each.cpu_s for each in took), 0.5),
        "lookup_cpu_ms_p99": percentile_ms((each.cpu_s for each in took), 0.99),
        "alone_lookup_ms_p99": percentile_ms((each.wall_s for each in alone), 0.99),
        "alone_lookup_on_core_ms_p99": percentile_ms((each.on_core_s for each in alone), 0.99),
    }
    yield {"lookup_on_core_ms_by_keys": growth((100, 1_000) if small else (100, 1_000, 10_000), prompts)}
    yield {**engines_on_a_node(small=small), "cores": os.cpu_count()}


def goals(result: dict[str, Any]) -> list[Goal]:
    """Compare what was measured with what was to be reached."""
    return [
        at_most("lookup_ms_p99", result["lookup_ms_p99"], 1.0),
        at_most("scheduler_cost_ratio", result["scheduler_cost_ratio"], 1.5),
        at_most("other_engine_ttft_ratio", result["other_engine_ttft_ratio"], 1.15),
        at_least("found_after_kill", result["found_after_kill"], 0.99),
        at_least("copy_rate_ratio", result["copy_rate_ratio"], 0.97),
    ]


if __name__ == "__main__":
    main()
