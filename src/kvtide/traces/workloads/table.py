"""The workloads by name."""

from __future__ import annotations

from kvtide.traces.workloads.agents import agents
from kvtide.traces.workloads.base import Sessions
from kvtide.traces.workloads.chats import chats
from kvtide.traces.workloads.documents import documents
from kvtide.traces.workloads.mixture import mixture
from kvtide.traces.workloads.once import once

WORKLOADS: dict[str, Sessions] = {
    "mixture": mixture,
    "chats": chats,
    "agents": agents,
    "documents": documents,
    "once": once,
}
