"""What a look-up takes at a node with 8 busy engines, where each of them has a core: in virtual time.

    python benchmarks/node_lookups.py [--json] [--small]

Engines do what they do in `node.py`. Each frame is really packed, sent, received, answered and read, by the code of
engines and node, one after the other in this process. The processor time that it takes is what passes on the clock. So
the result does not depend on how many cores there are and who else uses them. What is left out is the time to wake a
process up.

lookup_ms           of a look-up with lease of 1,000 keys: engine, waiting for others at the node, node, engine
first_come_ms       the same if engines were answered in the order of coming, and all that one has said at once
node_us, engine_us  processor time at the node by kind of frame, and at an engine for a look-up: medians
node_busy           how much of the time the node has something to do
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from socket import socketpair

from kvtide.core import FullAttention
from kvtide.core.index.calls import Call, Found, LookUp, Offer, Release, Reply, Reserve, Reserved, Settle
from kvtide.core.index.shared import SharedIndex
from kvtide.node.codec import Kind, call_frame, read_call, read_reply, reply_frame
from kvtide.node.connection import Connection
from kvtide.node.credentials import Credentials
from kvtide.node.frames import Frame
from kvtide.node.peers import Peer
from kvtide.node.space import make_index
from kvtide.node.turns import Turns, hear, may_say_more
from node import ENGINES, LOADS_PER_S, PROMPT_BLOCKS, PROMPTS_HELD, STEP_BLOCKS, STEP_S, STORES_PER_S, make_keys

BLOCK_TOKENS = 16
LOAD_S = 0.001
"""From a look-up's answer to the end of the request that has loaded."""
PROMPTS_EACH = 4
"""That an engine loads again and again."""


class Engine:
    """One end of a connection, and the other one at the node."""

    def __init__(self, number: int) -> None:
        self.number = number
        ours, theirs = socketpair()
        self.connection = Connection(ours)
        self.peer = Peer(Connection(theirs), Credentials(1, 1, frozenset()), 0.0)

    def close(self) -> None:
        self.connection.close()
        self.peer.connection.close()


class FirstCome(Turns):
    """Everybody in the order of coming."""

    def add(self, peer: Peer) -> None:
        self._others[peer] = None


Answered = Callable[[float, Reply], None]
"""Hears when an answer came, and which."""


@dataclass
class Said:
    """What an engine has said at one time."""

    looks_up: bool
    frames: int
    """That are not answered."""
    when_s: float
    sent_s: float
    """What sending took."""
    answered: Answered | None


class World:
    """Engines, a node, and a clock."""

    def __init__(self, *, first_come: bool) -> None:
        slots = ENGINES * PROMPTS_HELD * PROMPT_BLOCKS
        index, _ = make_index((FullAttention(BLOCK_TOKENS),), slots, "prefix", 1, None)
        self.index = SharedIndex(index)
        self.index.grow(slots)
        self.engines = [Engine(number) for number in range(ENGINES)]
        for engine in self.engines:
            self.index.attach(engine.number, slots)
        self.now_s = self.busy_s = 0.0
        self._at_once = first_come
        self.lookups_s: list[float] = []
        self.node_s: dict[str, list[float]] = defaultdict(list)
        self.engine_s: list[float] = []
        """Of look-ups."""
        self._turns = FirstCome() if first_come else Turns()
        self._ids = count(1)
        self._order = count()
        self._coming: list[tuple[float, int, Engine, list[Call], Answered | None]] = []
        self._said: dict[Engine, list[Said]] = {engine: [] for engine in self.engines}
        """What each has said and is not all answered."""

    def at(self, when_s: float, engine: Engine, calls: list[Call], answered: Answered | None = None) -> None:
        """Let calls be sent then; `answered` hears what the last one gives."""
        heapq.heappush(self._coming, (when_s, next(self._order), engine, calls, answered))

    def run(self) -> None:
        while self._coming or self._turns:
            self._receive()
            if not self._turns and not self._rested():
                self.now_s = max(self.now_s, self._coming[0][0])
            for peer in self._turns.take():
                self._answer(next(engine for engine in self.engines if engine.peer is peer))

    def _rested(self) -> bool:
        """Let the node use its time, if nobody has come before; return whether there is more to do."""
        if self._coming[0][0] <= self.now_s:
            return True
        begin = time.thread_time()
        more = self.index.rest()
        self._passed(time.thread_time() - begin)
        return more

    def _receive(self) -> None:
        """Read what has come. Who has said enough waits."""
        later = []
        while self._coming and self._coming[0][0] <= self.now_s:
            event = heapq.heappop(self._coming)
            when_s, _, engine, calls, answered = event
            if engine.peer.waiting and (self._at_once or not may_say_more(engine.peer)):
                later.append(event)
                continue
            begin = time.thread_time()
            for call in calls:
                frame = call_frame(call)
                engine.connection.send(frame)
            sent = time.thread_time()
            frames: list[Frame] = []
            while len(frames) < len(calls):
                frames += engine.peer.connection.receive()
            hear(engine.peer, frames)
            self._passed(time.thread_time() - sent)
            looks_up = isinstance(calls[0], LookUp)
            self._said[engine].append(Said(looks_up, len(calls), when_s, sent - begin, answered))
            self._turns.add(engine.peer)
        for event in later:
            heapq.heappush(self._coming, event)

    def _answer(self, engine: Engine) -> None:
        waiting = engine.peer.waiting
        if not waiting:
            return  # it has looked something up, too, and that was all
        frame = waiting.popleft()
        begin = time.thread_time()
        reply = self.index.handle(engine.number, read_call(frame))
        if reply is not None:
            engine.peer.connection.send(reply_frame(reply))
        spent = time.thread_time() - begin
        self._passed(spent)
        self.node_s[Kind(frame.kind).name.lower()].append(spent)
        self._answered(engine, looks_up=frame.kind == Kind.LOOK_UP)
        if waiting and self._at_once:
            self._answer(engine)
        elif waiting:
            self._turns.add(engine.peer)

    def _answered(self, engine: Engine, *, looks_up: bool) -> None:
        said = next(each for each in self._said[engine] if each.looks_up == looks_up)
        said.frames -= 1
        if said.frames:
            return
        self._said[engine].remove(said)
        begin = time.thread_time()
        replies = [read_reply(frame) for frame in engine.connection.receive()]
        spent = time.thread_time() - begin
        if looks_up:
            self.engine_s.append(said.sent_s + spent)
            self.lookups_s.append(self.now_s - said.when_s + said.sent_s + spent)
        if said.answered is not None:
            said.answered(self.now_s, replies[-1])

    def _passed(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy_s += seconds

    # ------------------------------------------------------------------ what engines do

    def load(self, when_s: float, engine: Engine, prompt: int) -> None:
        """Look a prompt up; release it and offer it again when the request ends."""
        keys = make_keys(prompt, PROMPT_BLOCKS)

        def found(now_s: float, reply: Reply) -> None:
            assert isinstance(reply, Found)
            assert reply.tokens == PROMPT_BLOCKS * BLOCK_TOKENS, reply
            assert reply.lease is not None
            self.at(now_s + LOAD_S, engine, [Release(reply.lease, used=True), self._ended(keys)])

        self.at(when_s, engine, [LookUp(next(self._ids), [keys], 0, PROMPT_BLOCKS * BLOCK_TOKENS + 1)], found)

    def store(self, when_s: float, engine: Engine, prompt: int) -> None:
        """Compute a prompt step by step; each step commits what the one before was granted."""
        keys = make_keys(prompt, PROMPT_BLOCKS)

        def step(now_s: float, first: int, granted: list[int]) -> None:
            calls: list[Call] = [Settle([run], kept=True) for run in granted]
            if first < PROMPT_BLOCKS:
                parent = keys[first - 1] if first else None
                those, end_tokens = keys[first : first + STEP_BLOCKS], (first + 1) * BLOCK_TOKENS
                offer = Offer(0, those, parent, end_tokens, [], needs_prefix=True, touch=False)
                calls.append(Reserve(next(self._ids), [offer], PROMPT_BLOCKS))
                self.at(now_s, engine, calls, lambda then_s, reply: granted_at(then_s, first, reply))
            else:
                self.at(now_s, engine, [*calls, self._ended(keys)])

        def granted_at(now_s: float, first: int, reply: Reply) -> None:
            assert isinstance(reply, Reserved)
            runs = [run.id for taken in reply.taken for run in taken.runs]
            step(now_s + STEP_S, first + STEP_BLOCKS, runs)

        step(when_s, 0, [])

    def _ended(self, keys: list[bytes]) -> Call:
        """Offer all of a request, when it ends."""
        offer = Offer(0, keys, None, BLOCK_TOKENS, [], needs_prefix=True, touch=True)
        return Reserve(next(self._ids), [offer], PROMPT_BLOCKS)


def measure(seconds: float, *, first_come: bool = False) -> World:
    """Return a world in which engines have been busy for so long."""
    world, prompts = World(first_come=first_come), count(1_000_000)
    for engine in world.engines:  # so that the pool is full, and what is loaded came last
        for _ in range(PROMPTS_HELD - PROMPTS_EACH):
            world.store(0.0, engine, next(prompts))
    world.run()
    for engine in world.engines:
        for prompt in range(PROMPTS_EACH):
            world.store(world.now_s, engine, engine.number * PROMPTS_EACH + prompt)
    world.run()
    gc.collect()
    gc.freeze()
    begin_s, world.busy_s = world.now_s, 0.0
    world.node_s.clear()
    come = random.Random(1)  # noqa: S311 (when requests come is no secret)
    for engine in world.engines:
        when_s = begin_s
        while when_s < begin_s + seconds:
            when_s += come.expovariate(STORES_PER_S + LOADS_PER_S)
            if come.random() < STORES_PER_S / (STORES_PER_S + LOADS_PER_S):
                world.store(when_s, engine, next(prompts))
            else:
                world.load(when_s, engine, engine.number * PROMPTS_EACH + come.randrange(PROMPTS_EACH))
    world.run()
    world.busy_s /= world.now_s - begin_s
    gc.unfreeze()
    for engine in world.engines:
        engine.close()
    return world


def shares_ms(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(times_s)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {name: round(ordered[int(len(ordered) * share)] * 1e3, 3) for name, share in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--small", action="store_true", help="half a second, to see that it works")
    args = parser.parse_args()
    seconds = 0.5 if args.small else 20.0
    turns, first_come = measure(seconds), measure(seconds, first_come=True)
    result = {
        "lookup_ms": shares_ms(turns.lookups_s),
        "first_come_ms": shares_ms(first_come.lookups_s),
        "node_us": {kind: round(statistics.median(each) * 1e6) for kind, each in sorted(turns.node_s.items())},
        "engine_us": round(statistics.median(turns.engine_s) * 1e6),
        "node_busy": round(turns.busy_s, 3),
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:14} {value}")


if __name__ == "__main__":
    main()
