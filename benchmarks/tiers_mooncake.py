"""The Mooncake tier next to the client's own zero-copy batches, `batch_put_from` and `batch_get_into`.

Starts a master, and a process that lends the memory: a store that is shared is mostly elsewhere. (A client that lends
memory to itself copies within its process and never goes over the network.)

Tier and plain client take turns in one process, over the same memory, registered with both, with as many values in a
batch. Both connect anew for each round: some connections are twice as fast as others, and stay so. The tier has up to
four batches under way in each direction, the plain client one, which is its best: with three or four from as many
threads it had 40 to 99% of that, because each of them fills a core while it waits. The threads that wait in the tier
have a low priority (`kvtide.tiers.mooncake.waiters`), the plain client's the usual one.
"""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvtide.tiers import Item
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.mooncake.native import load
from kvtide.tiers.mooncake.opening import tier_of
from kvtide.tiers.mooncake.options import MooncakeConfig
from kvtide.tiers.mooncake.staging import address_of
from tiers_common import NAMESPACE, Blocks, Row, Settings, Times, run_calls

DEADLINE_MS = 10_000
"""A machine that is measured is busy."""
OWNER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", sys.argv[1], int(sys.argv[3]), 0, "tcp", "", sys.argv[2]) == 0
print("ready", flush=True)
sys.stdin.read()
"""
load(DEADLINE_MS)


def rows(settings: Settings) -> Iterator[Row]:
    with store(3 * settings.round_bytes + (64 << 20)) as options:
        (config,) = parse_tiers([options])
        assert isinstance(config, MooncakeConfig)
        for block_bytes in settings.block_sizes:
            blocks, times = Blocks(block_bytes, settings.round_bytes), Times()
            per_call = max(1, settings.call_bytes // block_bytes)
            for round_ in range(settings.rounds + 1):
                measure(config, blocks, blocks.items(round_), per_call, times)
                if not round_:  # the first round warms up
                    times = Times()
            yield times.row("mooncake", blocks)


def measure(config: MooncakeConfig, blocks: Blocks, items: list[Item], per_call: int, times: Times) -> None:
    tier, client = tier_of(config, NAMESPACE), connect(config)
    tier.register(blocks.memory)
    client.register_buffer(address_of(blocks.memory), blocks.total_bytes)
    put, get = client.batch_put_from, client.batch_get_into
    times.take("put", lambda: run_calls(tier.put, tier, items, per_call))
    times.take("get", lambda: run_calls(tier.get, tier, items, per_call))
    blocks.check()
    assert client.remove_by_regex("^kvtide:", True) == len(items)
    times.take("plain_put", lambda: plain(put, items, per_call, 0))
    times.take("plain_get", lambda: plain(get, items, per_call, blocks.block_bytes))
    assert client.remove_by_regex("^plain:", True) == len(items)
    tier.close()
    client.close()


def connect(config: MooncakeConfig) -> Any:
    client = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    assert client.setup("127.0.0.1", config.address.metadata, 0, 0, "tcp", "", config.address.master) == 0
    return client


def plain(call: Any, items: list[Item], per_call: int, done: int) -> None:
    for first in range(0, len(items), per_call):
        some = items[first : first + per_call]
        names = [f"plain:{item.key.hex()}" for item in some]
        statuses = call(names, [address_of(item.buffer) for item in some], [item.buffer.nbytes for item in some])
        assert all(status == done for status in statuses)


@contextmanager
def store(segment_bytes: int) -> Iterator[dict[str, object]]:
    """Start a master and the owner of a segment; yield the options of a tier there."""
    rpc, http, metrics = free_port(), free_port(), free_port()
    master = Path(str(importlib.import_module("mooncake.store").__file__)).with_name("mooncake_master")
    command = [str(master), "--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1"]
    command += [f"--http_metadata_server_port={http}", f"--rpc_port={rpc}", f"--metrics_port={metrics}"]
    where = [f"http://127.0.0.1:{http}/metadata", f"127.0.0.1:{rpc}"]
    with running(command):
        for port in (rpc, http):
            wait_for(port)
        with running([sys.executable, "-c", OWNER, *where, str(segment_bytes)]) as owner:
            assert owner.stdout is not None
            assert b"ready" in owner.stdout.readline()
            yield {"type": "mooncake", "metadata": where[0], "master": where[1], "deadline_ms": DEADLINE_MS}


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise AssertionError(f"nothing listens on port {port}")
