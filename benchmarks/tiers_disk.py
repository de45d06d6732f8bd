"""The disk tier next to one sequential file, written and read in blocks of the same size with the same I/O mode."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from kvtide.tiers import open_tiers, parse_tiers
from kvtide.tiers.disk.aligned import PAGE
from kvtide.tiers.disk.file_io import IoMode, open_file, probe
from kvtide.tiers.disk.layout import segment_layout
from kvtide.tiers.disk.moving_in import move_in
from kvtide.tiers.disk.opening import open_backend
from kvtide.tiers.disk.options import DiskConfig
from kvtide.tiers.disk.segments import Segments
from kvtide.tiers.record import Header
from tiers_common import NAMESPACE, Blocks, Restart, Row, Settings, Times, run_calls

HEADROOM = 1.3
"""Of the budget over what is put: nothing is evicted while it is measured."""


def rows(settings: Settings) -> Iterator[Row]:
    modes = [IoMode.CACHED, probe(settings.folder)]
    for mode in dict.fromkeys(reversed(modes)):
        threads = 1 if mode is IoMode.CACHED else 4
        for block_bytes in settings.block_sizes:
            yield measure(settings, block_bytes, mode, threads)


def measure(settings: Settings, block_bytes: int, mode: IoMode, threads: int) -> Row:
    blocks = Blocks(block_bytes, settings.round_bytes)
    times = Times()
    store_folder, plain = settings.folder / "store", settings.folder / "plain"
    store_folder.mkdir()
    size = int(blocks.total_bytes * HEADROOM) + (16 << 20)
    options = {"type": "disk", "path": str(store_folder), "size": size, "io": mode.value, "threads": threads}
    (tier,) = open_tiers(parse_tiers([options]), NAMESPACE, rank=0, slot_bytes_max=block_bytes)
    per_call = max(1, settings.call_bytes // block_bytes)
    for round_ in range(settings.rounds + 1):
        items = blocks.items(round_)
        times.take("put", lambda items=items: run_calls(tier.put, tier, items, per_call))  # type: ignore[misc]
        times.take("get", lambda items=items: run_calls(tier.get, tier, items, per_call))  # type: ignore[misc]
        blocks.check()
        assert tier.clear(0)
        assert tier.wait(60.0)
        tier.poll()
        measure_plain(plain, blocks, mode, times)
        if not round_:  # the first round warms up
            times = Times()
    tier.close()
    shutil.rmtree(store_folder)
    return times.row(f"disk-{mode.value}", blocks)


def measure_plain(path: Path, blocks: Blocks, mode: IoMode, times: Times) -> None:
    """Write a new file from beginning to end, block by block, and read it."""
    file = open_file(path, mode, create=True)

    def write() -> None:
        os.posix_fallocate(file, 0, blocks.total_bytes)
        for number in range(blocks.count):
            os.pwrite(file, blocks.buffer(number), number * blocks.block_bytes)

    def read() -> None:
        for number in range(blocks.count):
            os.preadv(file, [blocks.buffer(number)], number * blocks.block_bytes)

    times.take("plain_put", write)
    times.take("plain_get", read)
    os.close(file)
    path.unlink()


def restarts(settings: Settings) -> Iterator[Restart]:
    for gb in settings.restart_gb:
        for block_bytes in settings.block_sizes[::2]:
            size = gb * 10**9
            if settings.small:
                size //= 100
            yield restart(settings.folder / "restart", gb, size, block_bytes)


def restart(folder: Path, gb: int, size: int, block_bytes: int) -> Restart:
    """Make a store of the right number of records, whose bodies nobody wrote, and open it."""
    folder.mkdir()
    try:
        options = {"type": "disk", "path": str(folder), "size": size + (256 << 20)}
        (config,) = parse_tiers([options])
        assert isinstance(config, DiskConfig)
        records = fill_with_headers(config, size // block_bytes, block_bytes)
        begin_s = time.perf_counter()
        store = open_backend(config, NAMESPACE, block_bytes)
        seconds = time.perf_counter() - begin_s
        assert store.records == records
        store.close()
    finally:
        shutil.rmtree(folder)
    return Restart("disk", gb, block_bytes, records, round(seconds, 3))


def fill_with_headers(config: DiskConfig, count: int, block_bytes: int) -> int:
    """Publish headers in segments that take their room on the disk, without writing bodies."""
    layout = segment_layout(config.size, block_bytes)
    assert layout is not None
    path, lock = move_in("path", config.path, 0, 1, config.size)
    folder = Segments(path, NAMESPACE.digest, layout, config.size, IoMode.DIRECT)
    made = 0
    while made < count and (segment := folder.add()) is not None:
        headers = []
        for entry in range(min(layout.capacity, count - made)):
            sequence = segment.owner.first_sequence + entry
            place = layout.first_page + entry * (block_bytes // PAGE)
            name = sequence.to_bytes(4, "little") * 9
            headers.append(Header(NAMESPACE.digest, name, block_bytes, bytes(16), sequence, place).pack())
        segment.publish(0, headers)
        made += len(headers)
    lock.close()
    return made
