"""An engine that is killed while its GPU writes to a node's memory: when its exit can be seen, nothing writes any more.

    PYTHONPATH=src python -m pytest tests/gpu/test_killed.py -o filterwarnings=default

A node gives slots to somebody else as soon as the process that wrote to them has exited (I10). That is right only if
the GPU's last copy is over by then.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda import CudaCache, CudaCopyEngine, Route, tensor_regions
from kvtide.core.messages import Copy
from kvtide.node.arenas import NodeArena
from kvtide.node.hello import ArenaDescription
from kvtide.node.mapped import MappedArena
from tests.contracts.copy_contract import PATIENCE_S, STORE

BLOCKS, BLOCK_BYTES = 2048, 1 << 20
QUEUED = 32
"""Stores of the whole arena that are under way at any time: 64 GiB, more than a second."""
KILLS = 2
WATCHED_S = 3.0
ENGINES, NOBODY = 0xA5, 0x11


def store_for_ever(route: str, descriptor: str, description: str) -> None:
    """Be an engine that stores and stores."""
    torch: Any = importlib.import_module("torch")
    tensor = torch.full((BLOCKS, BLOCK_BYTES), ENGINES, dtype=torch.uint8, device="cuda")
    arena = MappedArena(int(descriptor), ArenaDescription(**json.loads(description)))
    cache = CudaCache(tensor_regions(tensor, 0), blocks=BLOCKS)
    engine = CudaCopyEngine(cache, arena, route=Route(route))
    assert engine.pinning.wait(PATIENCE_S)
    everything, submitted, done = tuple(range(BLOCKS)), 0, 0
    while True:
        while submitted < done + QUEUED:
            assert engine.submit(STORE, Copy(submitted, everything, everything))
            submitted += 1
        finished = engine.poll()
        assert not finished.failed, finished
        done += len(finished.done)
        time.sleep(0.001)


@contextmanager
def storing_engine(route: Route, node: NodeArena) -> Iterator[subprocess.Popen[bytes]]:
    told = (route.value, str(node.descriptor), json.dumps(asdict(node.description)))
    process = subprocess.Popen(  # noqa: S603 (our own words)
        [sys.executable, "-m", "tests.gpu.test_killed", *told], pass_fds=[node.descriptor]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, "the engine has ended"
        assert time.monotonic() < end_s, "it does not happen"


@pytest.mark.parametrize("route", Route)
def test_f28_when_the_exit_of_an_engine_is_seen_its_gpu_has_written_its_last_byte(route: Route) -> None:
    node = NodeArena(0, BLOCKS, BLOCK_BYTES)
    for _ in range(KILLS):
        with storing_engine(route, node) as engine:
            for _ in range(2):  # it goes on and on, and that shows
                node.mapped.memory[:] = NOBODY
                wait_until(lambda: node.mapped.memory[-1, -1] == ENGINES, engine)
            exited = os.pidfd_open(engine.pid)
            engine.send_signal(signal.SIGKILL)
            assert select.select([exited], [], [], PATIENCE_S)[0]
            node.mapped.memory[:] = NOBODY
            end_s = time.monotonic() + WATCHED_S
            while time.monotonic() < end_s:
                assert not np.any(node.mapped.memory != NOBODY), "bytes of an engine that has exited"
            os.close(exited)
    node.close()


if __name__ == "__main__":
    store_for_ever(*sys.argv[1:])
