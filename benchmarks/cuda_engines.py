"""Engines in processes of their own that copy at the same time: through one arena of a node, or each to its own memory.

Used by cuda_copy.py.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from kvtide.copy import HostArena
from node_engines import arena_at_node
from node_process import node_process

TIMEOUT_S = 300.0
WAYS = ("store", "load", "both")


class Copier(Protocol):
    """Copies the same blocks again and again."""

    def copy(self, way: str) -> int:
        """Copy one way or both, and return the bytes."""

    def close(self) -> None:
        """Give all memory back but the arena that it was given."""


Make = Callable[[HostArena | None, int], Copier]
"""Makes one that copies to an arena, from a slot on, or (None) to memory of its own."""


def engines_at_node(make: Make, engines: int, slots: int, slot_bytes: int, repeats: int) -> dict[str, float]:
    """Return GB/s of all engines together at a node and with private memory, in turn, and the median of the ratios.

    `make` is sent to each engine. `slots`: how many each of them uses.
    """
    found = {}
    with (
        node_process((engines * slots + 2) * slot_bytes) as socket,
        _processes(make, engines, socket, slots, slot_bytes) as pipes,
    ):
        for way in WAYS:
            pairs = [(_gbps(pipes, "private", way), _gbps(pipes, "node", way)) for _ in range(repeats + 1)][1:]
            found[f"{way}_private"], found[way] = map(statistics.median, zip(*pairs, strict=True))
            found[f"{way}_ratio"] = statistics.median(node / private for private, node in pairs)
    return found


def _gbps(pipes: list[Any], where: str, way: str) -> float:
    for pipe in pipes:
        pipe.send((where, way))
    moved, begins_s, ends_s = zip(*map(_answer, pipes), strict=True)
    return float(sum(moved) / (max(ends_s) - min(begins_s)) / 1e9)


@contextmanager
def _processes(make: Make, engines: int, socket: Path, slots: int, slot_bytes: int) -> Iterator[list[Any]]:
    context = multiprocessing.get_context("spawn")
    at_once = context.Barrier(engines)
    with ExitStack() as stack:
        pipes, processes = [], []
        for number in range(engines):
            ours, theirs = context.Pipe()
            own = range(number * slots, (number + 1) * slots)
            process = context.Process(
                target=_serve,
                args=(make, socket, slot_bytes),
                kwargs={"slots": own, "at_once": at_once, "pipe": theirs},
            )
            process.start()
            theirs.close()
            stack.callback(process.kill)
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _answer(pipe)
        yield pipes
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(TIMEOUT_S)
            assert process.exitcode == 0, "an engine did not end well: it has said why"


def _serve(make: Make, socket: Path, slot_bytes: int, *, slots: range, at_once: Any, pipe: Any) -> None:
    with arena_at_node(socket, slot_bytes, engine=f"copies-{slots.start}") as arena:
        assert arena.slots >= slots.stop, f"the node has {arena.slots} slots"
        copiers = {"private": make(None, 0), "node": make(arena, slots.start)}
        pipe.send(())
        while (order := pipe.recv()) is not None:
            where, way = order
            at_once.wait(TIMEOUT_S)
            begin_s = time.perf_counter()
            moved = copiers[where].copy(way)
            pipe.send((moved, begin_s, time.perf_counter()))
        for copier in copiers.values():
            copier.close()


def _answer(pipe: Any) -> Any:
    assert pipe.poll(TIMEOUT_S), "an engine does not answer"
    try:
        return pipe.recv()
    except EOFError:
        raise AssertionError("an engine has ended: it has said why") from None
