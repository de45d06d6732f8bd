"""What engines gain from a node: embedded engines that share one, one that is killed, and copies to shared memory.

Used by node.py. Everything is measured beside the same thing without a node, in turns.
"""

from __future__ import annotations

import mmap
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from unittest.mock import patch

import numpy as np

from kvtide.copy import CopyEngine, DeviceCache, Direction, HostArena, Region, ThreadedCopyEngine, libc
from kvtide.core.index import lives, look_ups
from kvtide.core.messages import Copy
from kvtide.engine import Completion, Engine, EngineConfig, ModelConfig
from kvtide.node import index_link
from kvtide.node.ask import status_of
from kvtide.node.client import Client
from kvtide.node.described_groups import described
from kvtide.node.hello import Hello, Role

BLOCK_TOKENS = 16
DOCUMENT_BLOCKS = 96
DOCUMENT_TOKENS = DOCUMENT_BLOCKS * BLOCK_TOKENS + 1
"""One token is left to compute, whoever has the rest."""
CONFIG = EngineConfig(model=ModelConfig(), device_blocks=DOCUMENT_BLOCKS + 16, block_tokens=BLOCK_TOKENS, max_running=1)
"""The device has room for one document: the one before is on the host only."""
BLOCK_BYTES = CONFIG.geometry().block_bytes
TIMEOUT_S = 120.0

COPY_BLOCKS, COPY_LAYERS, COPY_FRAGMENT_BYTES = 256, 16, 16 << 10
"""Blocks of 256 KiB, 64 MiB at a time, in 16 fragments."""


@contextmanager
def patience() -> Iterator[None]:
    """Let what is late on a busy machine count as late, and not as a miss."""
    with (
        patch.object(index_link, "ATTACH_S", TIMEOUT_S),
        patch.object(lives, "ATTACH_S", TIMEOUT_S),
        patch.object(look_ups, "LATE_S", TIMEOUT_S),
    ):
        yield


def memory_for(documents: int) -> int:
    """Return the memory that a node needs for so many documents."""
    return (documents + 1) * (DOCUMENT_BLOCKS + 1) * BLOCK_BYTES


def document(number: int) -> list[int]:
    """Return the tokens of a document that nobody has seen."""
    rng = np.random.default_rng((17, number))
    tokens: list[int] = rng.integers(CONFIG.model.vocab, size=DOCUMENT_TOKENS).tolist()
    return tokens


def serve(engine: Engine, number: int) -> Completion:
    """Let an engine read a document and say one token; all of it is stored when this returns."""
    engine.submit("r", document(number), 1)
    (done,) = engine.run()
    return done


# ---------------------------------------------------------------------- another engine's document


def other_engine_ttft(socket: Path, documents: int) -> tuple[float, float]:
    """Return the median TTFT of a hit in an engine's own pool, and of what another engine has at the node, in ms."""
    own_ms, other_ms = [], []
    host = {"host": memory_for(documents)}
    at_node = {"node": str(socket)}
    with patience(), Engine(CONFIG, host) as own, Engine(CONFIG, at_node) as first, Engine(CONFIG, at_node) as second:
        for engine in (own, first):
            for number in range(documents):
                assert serve(engine, number).loaded_tokens == 0
        serve(second, documents)  # it has attached by now
        for number in range(documents):
            own_ms.append(_ttft_ms(serve(own, number)))
            other_ms.append(_ttft_ms(serve(second, number)))
    return statistics.median(own_ms), statistics.median(other_ms)


def _ttft_ms(done: Completion) -> float:
    assert done.loaded_tokens == DOCUMENT_TOKENS - 1, f"{done.loaded_tokens} tokens were loaded"
    assert done.ttft_s is not None
    return done.ttft_s * 1000


# ---------------------------------------------------------------------- kill -9


def found_after_kill(socket: Path, documents: int) -> tuple[float, bool]:
    """Return how much of what was committed an engine finds that is started again, and whether the first was loaded.

    The one before is killed with -9 while it computes and stores one document more.
    """
    with _engine_process(socket) as (process, pipe):
        for number in range(documents):
            pipe.send(number)
            assert _answer(pipe) == 0
        pipe.send(documents)
        time.sleep(0.05)
        process.kill()
        process.join(TIMEOUT_S)
    committed = _committed_blocks(socket)
    with _engine_process(socket) as (_, pipe):
        loaded = []
        for number in range(documents + 1):
            pipe.send(number)
            loaded.append(_answer(pipe))
    return sum(loaded) / BLOCK_TOKENS / committed, loaded[0] == DOCUMENT_TOKENS - 1


@contextmanager
def _engine_process(socket: Path) -> Iterator[tuple[multiprocessing.process.BaseProcess, Pipe]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_all, args=(socket, theirs))
    process.start()
    try:
        assert _answer(ours) == 0
        yield process, ours
    finally:
        process.kill()
        process.join(TIMEOUT_S)


def _serve_all(socket: Path, pipe: Pipe) -> None:
    with patience(), Engine(CONFIG, {"node": str(socket)}) as engine:
        pipe.send(0)
        while True:
            pipe.send(serve(engine, pipe.recv()).loaded_tokens)


def _answer(pipe: Pipe) -> int:
    assert pipe.poll(TIMEOUT_S), "the engine does not answer"
    loaded: int = pipe.recv()
    return loaded


def _committed_blocks(socket: Path) -> int:
    """Return how many blocks are at the node, once nobody holds any."""
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        status = status_of(socket)
        (space,) = status["namespaces"]
        if not status["engines"] and not space["quarantined"]:
            return int(space["cached"])
        assert time.monotonic() < end_s, "the node waits for an engine that is dead"
        time.sleep(0.01)


# ---------------------------------------------------------------------- copies


def copy_rates(socket: Path, rounds: int) -> tuple[dict[str, float], str]:
    """Return GB/s to and from private memory and the node's, in turns, and which pages the node has.

    Private memory is in huge pages where the system makes any when asked; shared memory often is not. What that costs
    the third one tells, which is private and in small pages.
    """
    slot_bytes = COPY_LAYERS * COPY_FRAGMENT_BYTES
    layers = np.ones((COPY_LAYERS, COPY_BLOCKS, COPY_FRAGMENT_BYTES), np.uint8)
    cache = DeviceCache(
        [Region(layer, COPY_FRAGMENT_BYTES, COPY_FRAGMENT_BYTES) for layer in layers], blocks=COPY_BLOCKS
    )
    with (
        arena_at_node(socket, slot_bytes) as shared,
        HostArena(COPY_BLOCKS, slot_bytes) as private,
        HostArena(COPY_BLOCKS, slot_bytes) as small_pages,
    ):
        libc.madvise(small_pages.address, COPY_BLOCKS * slot_bytes, mmap.MADV_NOHUGEPAGE)
        engines: dict[str, CopyEngine] = {}
        for name, arena in (("private", private), ("node", shared), ("private, small pages", small_pages)):
            arena.memory[:] = 0
            engines[name] = ThreadedCopyEngine(cache, arena)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(rounds):
            for name, engine in engines.items():
                seconds[name].append(_copy_both_ways(engine, number))
        for engine in engines.values():
            engine.close()
    (space,) = status_of(socket)["namespaces"]
    moved = 2 * COPY_BLOCKS * slot_bytes / 1e9
    rates = {name: moved / statistics.median(each[1:]) for name, each in seconds.items()}
    return rates, space["arenas"][0]["pages"]


def _copy_both_ways(engine: CopyEngine, number: int) -> float:
    slots = np.random.default_rng(number).permutation(COPY_BLOCKS)
    begin_s = time.perf_counter()
    for direction in Direction:
        assert engine.submit(direction, Copy(number, tuple(range(COPY_BLOCKS)), tuple(slots.tolist())))
        assert engine.wait((number,), TIMEOUT_S)
        assert engine.poll().done == (number,)
    return time.perf_counter() - begin_s


@contextmanager
def arena_at_node(socket: Path, slot_bytes: int, *, engine: str = "copies") -> Iterator[HostArena]:
    """Attach an engine to a node, and give it its memory. Engines with slots of the same size have the same."""
    namespace = {"model": "copies", "groups": described(CONFIG.groups), "parts": [slot_bytes]}
    scheduler = Client(socket, Hello(Role.SCHEDULER, engine=engine, namespace=namespace))
    welcome = scheduler.wait(TIMEOUT_S)
    worker = Client(socket, Hello(Role.WORKER, engine=engine, epoch=welcome.epoch, owner=welcome.owner))
    worker.wait(TIMEOUT_S)
    (arena,) = worker.arenas
    try:
        yield arena
    finally:
        arena.close()
        worker.close()
        scheduler.close()
