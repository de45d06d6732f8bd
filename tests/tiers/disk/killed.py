"""Kills a writer again and again, and looks at what is left. Run by the tests, in a process without threads.

    python -m tests.tiers.disk.killed FOLDER ROUNDS SEED

What a writer was told is done is there after it was killed. What is served is what was put. The rest is a miss.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

from kvtide.tiers import HIT, Item, QueuedTier, Verdict
from tests.contracts.tier_contract import answers, key, room
from tests.tiers.support import disk_bytes, disk_store

SIZE = 4 << 20
SLOT_BYTES = 24 << 10
PER_ROUND = 1 << 16
MODES = ("auto", "buffered", "cached")


def size(number: int) -> int:
    return 2048 * (1 + number % 12)


def content(number: int) -> memoryview:
    """Return the bytes of a block."""
    text = number.to_bytes(4, "little") + b"kvtide--"
    return memoryview(bytearray(text * (size(number) // len(text) + 1))[: size(number)])


def write(folder: Path, first: int, done: mmap.mmap, io: str, rng: random.Random) -> NoReturn:
    """Put blocks until killed; say which are done."""
    tier = QueuedTier(disk_store(folder, SIZE, slot_bytes=SLOT_BYTES, io=io), threads=3, part_bytes=32 << 10)
    number = first
    done[8] = 1
    while True:
        count = rng.randrange(1, 8)
        assert tier.put(1, [Item(key(number + i), content(number + i)) for i in range(count)])
        if answers(tier, 1)[1] == (HIT,) * count:
            done[:8] = struct.pack("<Q", number + count - 1)
        number += count
        if rng.random() < 0.01:
            done[:8] = bytes(8)  # from here on they may be gone
            assert tier.clear(1)
            answers(tier, 1)


def check(folder: Path, first: int, last_done: int, io: str) -> int:
    """Look at what the killed writer left; return how many blocks are served."""
    assert disk_bytes(folder) <= SIZE
    store = disk_store(folder, SIZE, slot_bytes=SLOT_BYTES, io=io)
    numbers = range(max(1, first - 300), first + 600)
    wanted = [Item(key(number), room(size(number))) for number in numbers]
    results = store.get(wanted)
    for number, item, result in zip(numbers, wanted, results, strict=True):
        assert result.verdict in (Verdict.HIT, Verdict.MISS), result
        assert result != HIT or item.buffer == content(number), number
        assert result == HIT or number != last_done, f"{number} was done, and is not there: {result}"
    assert not store.corrupt_records(), "a process that is killed leaves nothing half-written behind a header"
    store.close()
    return results.count(HIT)


def main(folder: Path, rounds: int, seed: int) -> None:
    """Kill as often as asked."""
    done = mmap.mmap(-1, mmap.PAGESIZE)
    rng = random.Random(seed)
    hits = 0
    for round_ in range(rounds):
        io = rng.choice(MODES)
        first = 1 + round_ * PER_ROUND
        done[:9] = bytes(9)
        writer = os.fork()
        if not writer:
            write(folder, first, done, io, random.Random(f"{seed} {round_}"))
        while round_ % 4 and not done[8]:  # every fourth is killed while it opens the store, or soon after
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.025))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        hits += check(folder, first, struct.unpack("<Q", done[:8])[0], io)
    sys.stdout.write(f"{rounds} rounds, {hits} blocks served\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
