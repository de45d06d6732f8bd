"""Gives memory back, in a thread: unmapping 64 GiB takes seconds, and the node answers meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from kvtide.errors import describe
from kvtide.node.arenas import NodeArena
from kvtide.node.shares import Budget
from kvtide.units import size_text


class GivingBack:
    """Memory counts as taken until it is gone: otherwise there would be more of it than the node may have."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvtide-giving-back")
        self._under_way: list[tuple[Future[None], Budget, int]] = []

    def give_back(self, arenas: Sequence[NodeArena], budget: Budget, nbytes: int) -> None:
        """Begin. Nobody may use these arenas any more."""
        try:
            future = self._thread.submit(_close, arenas)
        except RuntimeError:  # no thread can be had: better here, slowly, than not at all
            _close(arenas)
            future = Future()
            future.set_result(None)
        self._under_way.append((future, budget, nbytes))

    def look(self) -> None:
        """Take note of what is gone by now."""
        for done in [each for each in self._under_way if each[0].done()]:
            future, budget, nbytes = done
            self._under_way.remove(done)
            error = future.exception()
            if error is None:
                budget.taken_bytes -= nbytes
            else:
                self._say(f"{size_text(nbytes)} of memory cannot be given back: {describe(error)}")

    def bytes_of(self, budget: Budget) -> int:
        """Return how much of a budget will be free soon."""
        return sum(nbytes for _, of, nbytes in self._under_way if of is budget)

    def close(self) -> None:
        """End what was begun."""
        self._thread.shutdown()
        self.look()


def _close(arenas: Sequence[NodeArena]) -> None:
    for arena in arenas:
        arena.close()
