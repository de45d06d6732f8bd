"""What the benchmarks of tiers share: how a tier is timed, and what a row says.

A kind of tier is a module `tiers_<kind>.py` beside this file with

    def rows(settings: Settings) -> Iterator[Row]          put and get at each block size, next to the plainest thing
    def restarts(settings: Settings) -> Iterator[Restart]  optional
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvtide.copy import HostArena
from kvtide.tiers import Item, Namespace, Tier, Verdict

NAMESPACE = Namespace(
    model="benchmark",
    weights="0",
    dtype="bfloat16",
    layout="any",
    groups="full",
    block_bytes=0,
    attention="none",
    hashing="sha256_cbor",
)


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    folder: Path
    """An empty folder on the disk that is measured; what is left in it is removed."""
    block_sizes: tuple[int, ...] = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
    round_bytes: int = 512 << 20
    """Bytes put and got in each round, at each block size."""
    rounds: int = 5
    call_bytes: int = 16 << 20
    """Bytes of one call."""
    restart_gb: tuple[int, ...] = (1, 10, 50)
    small: bool = False


@dataclass
class Row:
    """One tier at one block size: medians of the rounds, in bytes per nanosecond."""

    tier: str
    block_bytes: int
    put_gbps: float
    get_gbps: float
    plain_put_gbps: float
    plain_get_gbps: float
    put_cpu_s_per_gb: float
    """CPU time of this process, all threads."""
    get_cpu_s_per_gb: float
    put_ratio: float
    """Speed as a share of the plainest thing's: the median of what each round says."""
    get_ratio: float


@dataclass
class Restart:
    """How long it takes until a store that holds something can be asked."""

    tier: str
    gb: int
    block_bytes: int
    records: int
    seconds: float


class Blocks:
    """Blocks of one size in the memory of a host pool, each with its own bytes."""

    def __init__(self, block_bytes: int, total_bytes: int) -> None:
        self.count = max(1, total_bytes // block_bytes)
        self.block_bytes = block_bytes
        self.memory = HostArena(self.count, block_bytes).memory.data.cast("B")
        noise = os.urandom(block_bytes)
        for number in range(self.count):
            self.buffer(number)[:] = noise
            self.buffer(number)[:8] = number.to_bytes(8, "little")

    @property
    def total_bytes(self) -> int:
        return self.count * self.block_bytes

    def buffer(self, number: int) -> memoryview:
        return self.memory[number * self.block_bytes : (number + 1) * self.block_bytes]

    def items(self, round_: int) -> list[Item]:
        """Return all blocks under the keys of a round."""
        return [
            Item(round_.to_bytes(4, "little") * 4 + number.to_bytes(4, "little") * 5, self.buffer(number))
            for number in range(self.count)
        ]

    def check(self) -> None:
        """See that every block is where it was."""
        assert all(self.buffer(number)[:8] == number.to_bytes(8, "little") for number in range(self.count))


@dataclass
class Times:
    """Seconds of each round, by what was done."""

    wall_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, do: Callable[[], None]) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        do()
        self.wall_s.setdefault(name, []).append(time.perf_counter() - wall_s)
        self.cpu_s.setdefault(name, []).append(time.process_time() - cpu_s)

    def row(self, tier: str, blocks: Blocks) -> Row:
        def gbps(name: str) -> float:
            return round(blocks.total_bytes / statistics.median(self.wall_s[name]) / 1e9, 3)

        def cpu(name: str) -> float:
            return round(statistics.median(self.cpu_s[name]) / (blocks.total_bytes / 1e9), 3)

        def ratio(name: str) -> float:
            pairs = zip(self.wall_s[f"plain_{name}"], self.wall_s[name], strict=True)
            return round(statistics.median(plain_s / tier_s for plain_s, tier_s in pairs), 3)

        return Row(
            tier=tier,
            block_bytes=blocks.block_bytes,
            put_gbps=gbps("put"),
            get_gbps=gbps("get"),
            plain_put_gbps=gbps("plain_put"),
            plain_get_gbps=gbps("plain_get"),
            put_cpu_s_per_gb=cpu("put"),
            get_cpu_s_per_gb=cpu("get"),
            put_ratio=ratio("put"),
            get_ratio=ratio("get"),
        )


def run_calls(call: Callable[[int, Sequence[Item]], bool], tier: Tier, items: Sequence[Item], per_call: int) -> None:
    """Run calls of `per_call` items, as many at a time as the tier takes; every result has to be a hit."""
    waiting = [items[first : first + per_call] for first in range(0, len(items), per_call)]
    left, ticket = len(waiting), 0
    while left:
        while waiting and call(ticket, waiting[0]):
            waiting.pop(0)
            ticket += 1
        assert tier.wait(60.0)
        for answer in tier.poll():
            left -= 1
            failed = [result for result in answer.results if result.verdict is not Verdict.HIT]
            assert not failed, failed[0]
