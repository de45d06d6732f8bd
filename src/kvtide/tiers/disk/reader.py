"""Reads records: neighbours on the disk in one call, and nothing is served that does not verify (F8)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvtide.errors import describe
from kvtide.tiers.base import MISS, Item, KeyResult, Verdict
from kvtide.tiers.disk.aligned import PAGE, Bounce, pages
from kvtide.tiers.disk.file_io import IoMode, moves_as_it_is
from kvtide.tiers.disk.index import Index, Spot
from kvtide.tiers.record import Reading, Sealer, stored_key, unpack

RUN_BYTES_MAX = 1 << 20
"""More than this is not read in one call: what was just read is verified while it is in the processor's cache."""
_bounce = Bounce()


class Wanted(NamedTuple):
    """A record that is to be read."""

    position: int
    item: Item
    spot: Spot
    raw: bytes
    """Its header."""
    page: int
    as_it_is: bool
    """Whether its body can be read to where it is wanted."""

    @property
    def end(self) -> int:
        """The page behind it."""
        return self.page + pages(self.item.buffer.nbytes)


class Reader:
    """Gets records of one store."""

    def __init__(self, index: Index, sealer: Sealer, mode: IoMode) -> None:
        self._index = index
        self._sealer = sealer
        self._mode = mode

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers with verified bytes."""
        results = [MISS] * len(items)
        spots = self._index.borrow([stored_key(item.key) for item in items])
        try:
            wanted = []
            for position, (item, spot) in enumerate(zip(items, spots, strict=True)):
                if spot is not None:
                    found = self._want(position, item, spot)
                    if isinstance(found, Wanted):
                        wanted.append(found)
                    else:
                        results[position] = found
            for run in _runs(wanted):
                self._read_run(run, results)
        finally:
            self._index.give_back(spots)
        return results

    def _want(self, position: int, item: Item, spot: Spot) -> Wanted | KeyResult:
        raw = spot.segment.header(spot.entry)
        header = unpack(raw)
        if header is None or header.length != item.buffer.nbytes:
            return self._verify(item, spot, raw, b"")
        as_it_is = not header.encrypted and moves_as_it_is(item.buffer, self._mode)
        return Wanted(position, item, spot, raw, header.place, as_it_is)

    def _read_run(self, run: Sequence[Wanted], results: list[KeyResult]) -> None:
        first = run[0]
        buffers = [wanted.item.buffer for wanted in run]
        if not first.as_it_is:
            buffers = [_bounce.buffer(first.item.buffer.nbytes)]
        try:
            left = first.spot.segment.read(buffers, first.page)
        except FileNotFoundError:
            return  # the store was cleared meanwhile: misses
        except OSError as error:
            for wanted in run:
                results[wanted.position] = KeyResult(Verdict.FAILED, describe(error))
            return
        for wanted, buffer in zip(run, buffers, strict=True):
            size = wanted.item.buffer.nbytes
            body = buffer if wanted.as_it_is and left >= size else buffer[: min(left, size)]
            results[wanted.position] = self._verify(wanted.item, wanted.spot, wanted.raw, body)
            left = max(0, left - size)

    def _verify(self, item: Item, spot: Spot, raw: bytes, body: bytes | memoryview) -> KeyResult:
        reading = self._sealer.open(item.key, raw, body, item.buffer)
        if reading in (Reading.CORRUPT, Reading.WRONG_SECRET):
            # Whoever computes it again may put it again.
            self._index.forget(stored_key(item.key), spot)
        if reading is Reading.CORRUPT:
            with contextlib.suppress(OSError):
                spot.segment.retract(spot.entry)
        return reading.result


def _runs(wanted: list[Wanted]) -> Iterator[list[Wanted]]:
    """Put records together that lie one behind the other and need no memory in between."""
    run: list[Wanted] = []
    for one in sorted(wanted, key=lambda one: (one.spot.segment.number, one.page)):
        adjacent = run and run[-1].end == one.page and run[-1].spot.segment is one.spot.segment
        short = run and (one.end - run[0].page) * PAGE <= RUN_BYTES_MAX
        if adjacent and short and run[-1].as_it_is and one.as_it_is:
            run.append(one)
        else:
            if run:
                yield run
            run = [one]
    if run:
        yield run
