"""A workload: sessions that overlap in time, as requests in order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from kvtide.options import parse_choice, parse_count
from kvtide.traces.record import TraceRequest
from kvtide.traces.workloads.base import Session, Source, Turn
from kvtide.traces.workloads.table import WORKLOADS

SESSIONS_PER_SECOND = 0.5


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests from a seed: the same whenever it is iterated over. Only open sessions are in memory."""

    name: str = "mixture"
    requests: int = 4000
    seed: int = 0
    block_tokens: int = 512
    sessions_per_second: float = SESSIONS_PER_SECOND

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_choice("workload", self.name, tuple(WORKLOADS))
        parse_count("requests", self.requests)
        parse_count("seed", self.seed, minimum=0)
        parse_count("block_tokens", self.block_tokens)

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests in the order of time."""
        rng = Random(self.seed)  # noqa: S311 (a workload, no secret)
        sessions = WORKLOADS[self.name](Source(rng, self.block_tokens))
        waiting: list[tuple[float, int, Turn, Session]] = []
        begin_s, begun = 0.0, 0
        for _ in range(self.requests):
            while not waiting or begin_s <= waiting[0][0]:
                _wait(waiting, begin_s, begun, next(sessions))
                begin_s += rng.expovariate(self.sessions_per_second)
                begun += 1
            time_s, number, turn, session = heapq.heappop(waiting)
            yield TraceRequest(
                round(time_s, 3), turn.hashes, turn.prompt_tokens, turn.output_tokens, f"{self.name}-{number}"
            )
            _wait(waiting, time_s, number, session)


def _wait(waiting: list[tuple[float, int, Turn, Session]], now_s: float, number: int, session: Session) -> None:
    """Let a session wait for its next turn, if it has one."""
    turn = next(session, None)
    if turn is not None:
        heapq.heappush(waiting, (now_s + turn.pause_s, number, turn, session))
