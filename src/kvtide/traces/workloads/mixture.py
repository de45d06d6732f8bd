"""All kinds of traffic at once."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.traces.workloads.agents import agents
from kvtide.traces.workloads.base import Session, Source
from kvtide.traces.workloads.chats import chats
from kvtide.traces.workloads.documents import documents
from kvtide.traces.workloads.once import once

SHARES = ((chats, 0.55), (once, 0.25), (documents, 0.15), (agents, 0.05))
"""Of the sessions that begin."""


def mixture(source: Source) -> Iterator[Session]:
    """Yield sessions of all kinds."""
    kinds = [sessions(source) for sessions, _ in SHARES]
    weights = [share for _, share in SHARES]
    while True:
        [chosen] = source.rng.choices(kinds, weights)
        yield next(chosen)
