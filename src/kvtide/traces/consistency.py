"""Hashes must mean the same all through a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from kvtide.traces.errors import TraceError
from kvtide.traces.record import TraceRequest

REMEMBERED = 1 << 20
"""Hashes whose predecessor is remembered; the least recently seen are forgotten."""
_NONE = object()


def consistent(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Yield the requests; raise if a hash comes behind two different ones, which no prefix hash does."""
    before_of: OrderedDict[int, int | None] = OrderedDict()
    for number, request in enumerate(requests, start=1):
        before: int | None = None
        for depth, value in enumerate(request.hashes):
            known = before_of.get(value, _NONE)
            if known is _NONE:
                before_of[value] = before
            elif known != before:
                raise TraceError(
                    f"request {number}: hash {value} stands for block {depth} behind {before}, and for a block behind "
                    f"{known} in an earlier one: these are not hashes of prefixes"
                )
            before = value
        while len(before_of) > REMEMBERED:
            before_of.popitem(last=False)
        yield request
