"""Cuts what is asked of a store into pieces that it does well with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batches(
    items: Sequence[T],
    *,
    count_max: int = sys.maxsize,
    bytes_max: int = sys.maxsize,
    size_of: Callable[[T], int] = lambda _: 0,
) -> Iterator[Sequence[T]]:
    """Cut items into runs of at most `count_max` and `bytes_max`. One that is larger stands alone.

    Examples:
        >>> list(batches([3, 1, 2, 9, 1, 1], bytes_max=4, size_of=int))
        [[3, 1], [2], [9], [1, 1]]

    """
    first = held = 0
    for index, item in enumerate(items):
        size = size_of(item)
        if index > first and (held + size > bytes_max or index - first == count_max):
            yield items[first:index]
            first, held = index, 0
        held += size
    if first < len(items):
        yield items[first:]
