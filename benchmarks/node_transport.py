"""How long a question to the node takes: an empty one, and 1,000 keys of 32 bytes with an answer of 4 KB.

    python benchmarks/node_transport.py [--json] [--small]

A real node process and real clients, 1 and 8 of them, each asking as fast as it is answered. The handler does nothing
but answer: what is measured is sockets, frames and the loop. On a machine with fewer cores than clients the times are
those of waiting for a core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from kvtide.node.arenas import NodeArena
from kvtide.node.client import Client
from kvtide.node.credentials import Access
from kvtide.node.frames import FIRST_OF_INDEX, Frame
from kvtide.node.hello import Hello, Role
from kvtide.node.listening import Listening
from kvtide.node.loop import Loop
from kvtide.node.owners import Owner
from kvtide.node.peers import limits_of_process
from kvtide.node.server import Server

CASES = {"empty": (b"", b""), "1000 keys": (os.urandom(32_000), bytes(4_000))}
EMPTY, KEYS = FIRST_OF_INDEX, FIRST_OF_INDEX + 1
TIMEOUT_S = 30.0


class Answers:
    """Answers at once."""

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        return {}

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        return ()

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        body = b"" if frame.kind == EMPTY else CASES["1000 keys"][1]
        return (Frame(frame.kind, body, frame.tag),)

    def rest(self) -> bool:
        return False

    def ending(self, owner: Owner) -> None:
        pass

    def over(self, owner: Owner) -> None:
        pass

    def clear(self, name: str) -> int:
        """There is nothing."""
        return 0

    def status(self) -> Mapping[str, object]:
        return {}


def serve(path: Path, ready: Pipe) -> None:
    loop = Loop()
    access, limits = Access(os.geteuid()), limits_of_process()
    server = Server(
        loop, Listening(path), Answers(), epoch="e", access=access, limits=limits, say=print, status=dict[str, object]
    )
    ready.send(True)
    loop.run(server.tick)


def ask(path: Path, case: str, count: int, results: Pipe) -> None:
    client = Client(path, Hello(Role.SCHEDULER, engine=f"engine {os.getpid()}"))
    client.wait(TIMEOUT_S)
    kind, (body, expected) = EMPTY if case == "empty" else KEYS, CASES[case]
    results.send(None)
    results.recv()
    times_us = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        answer = client.ask(kind, body, timeout_s=TIMEOUT_S)
        times_us.append((time.perf_counter_ns() - begin) / 1000)
        assert answer is not None
        assert answer.body == expected
    results.send(times_us)
    client.close()


def measure(path: Path, case: str, clients: int, count: int) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(clients)]
    processes = [context.Process(target=ask, args=(path, case, count, theirs)) for _, theirs in pipes]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        ours.recv()
    begin_s = time.perf_counter()
    for ours, _ in pipes:
        ours.send(None)
    times_us = sorted(time_us for ours, _ in pipes for time_us in ours.recv())
    seconds = time.perf_counter() - begin_s
    for process in processes:
        process.join()
    return {
        "question": case,
        "clients": clients,
        "median_us": round(statistics.median(times_us), 1),
        "p99_us": round(times_us[int(len(times_us) * 0.99)], 1),
        "per_s": round(len(times_us) / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--small", action="store_true", help="few questions, to see that it works")
    args = parser.parse_args()
    count = 50 if args.small else 5_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.sock"
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        node = context.Process(target=serve, args=(path, theirs), daemon=True)
        node.start()
        ours.recv()
        clients = (1, 2) if args.small else (1, 8)
        rows = [measure(path, case, many, count) for many in clients for case in CASES]
        node.terminate()
        node.join()
    if args.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
