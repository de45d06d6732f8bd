"""Ranks of a test that are threads of one process, and say things to each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0
_THREAD = threading.local()


def in_parallel(run: Callable[[int], T], ranks: Iterable[int]) -> list[T]:
    """Run something for each rank, in a thread of its own."""

    def as_rank(rank: int) -> T:
        _THREAD.rank = rank
        return run(rank)

    ranks = list(ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(as_rank, ranks))


class Meeting:
    """Stands in for a group of vLLM's."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks)
        self._heard: list[Any] = [None] * ranks

    def gather(self, said: object) -> list[Any]:
        """Say something to all; return what each has said."""
        self._heard[_THREAD.rank] = said
        self._barrier.wait(PATIENCE_S)
        heard = list(self._heard)
        self._barrier.wait(PATIENCE_S)
        return heard
