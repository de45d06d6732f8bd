"""Writes records: bodies first, then the headers that make them known."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.tiers.base import Item
from kvtide.tiers.disk.aligned import Bounce, pages
from kvtide.tiers.disk.file_io import IoMode, moves_as_it_is
from kvtide.tiers.disk.segment import Segment
from kvtide.tiers.record import Sealer

_bounce = Bounce()


class Writer:
    """Puts records of one store."""

    def __init__(self, sealer: Sealer, mode: IoMode) -> None:
        self._sealer = sealer
        self._mode = mode

    def write(self, segment: Segment, first_entry: int, first_page: int, items: Sequence[Item]) -> None:
        """Write consecutive records. Raises the `OSError` that kept them from being written: none is there then."""
        headers: list[bytes] = []
        waiting: list[memoryview] = []
        begin = page = first_page
        for entry, item in enumerate(items, start=first_entry):
            sequence = segment.owner.first_sequence + entry
            header, body = self._sealer.seal(item.key, item.buffer, sequence=sequence, place=page)
            headers.append(header)
            page += pages(body.nbytes)
            if moves_as_it_is(body, self._mode):
                waiting.append(body)
                continue
            segment.write([*waiting, _bounced(body)], begin)
            waiting, begin = [], page
        segment.write(waiting, begin)
        segment.publish(first_entry, headers)


def _bounced(body: memoryview) -> memoryview:
    buffer = _bounce.buffer(body.nbytes)
    buffer[: body.nbytes] = body
    return buffer
