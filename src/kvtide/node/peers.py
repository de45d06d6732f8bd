"""Those who are connected, and what they may not exceed."""

from __future__ import annotations

import resource
from collections import deque
from dataclasses import dataclass, field

from kvtide.errors import KVTideError
from kvtide.node.connection import Connection
from kvtide.node.credentials import Credentials
from kvtide.node.frames import Frame
from kvtide.node.hello import Role
from kvtide.node.owners import Member

_OTHER_DESCRIPTORS = 128
"""For arenas, tiers, metrics and all that is open anyway."""
_DESCRIPTORS_EACH = 2
"""The connection, and the process."""
_CONNECTIONS_OF_ENGINE = 2
"""At least: its scheduler and a worker."""
_CONNECTIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What nobody may exceed."""

    connections: int
    """Connections, and processes that are waited for."""
    for_more: str = ""
    """What to do if that is too few."""
    hello_s: float = 5.0
    """To say hello."""
    half_frame_s: float = 10.0
    """To send the rest of a frame."""


def limits_of_process() -> Limits:
    """Return what this process has descriptors for, once it has asked for all that it may have.

    Raises `KVTideError` if that is not enough for any engine.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        hard = _OTHER_DESCRIPTORS + _CONNECTIONS_MAX * _DESCRIPTORS_EACH
    connections = min(_CONNECTIONS_MAX, (hard - _OTHER_DESCRIPTORS) // _DESCRIPTORS_EACH)
    if connections < _CONNECTIONS_OF_ENGINE:
        least = _OTHER_DESCRIPTORS + _CONNECTIONS_OF_ENGINE * _DESCRIPTORS_EACH
        raise KVTideError(f"this process may open {hard} files, and a node takes {least}: raise `ulimit -n`")
    return Limits(connections, f"it may open {hard} files: raise `ulimit -n` or LimitNOFILE of the node")


@dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    connection: Connection
    credentials: Credentials
    since_s: float
    role: Role | None = None
    """None: it has not said hello."""
    member: Member | None = None
    waiting: deque[Frame] = field(default_factory=deque)
    """Frames that are looked at when it has read the answers to those before, and it is its turn (`turns.py`)."""
    is_blocked: bool = False
    """It has not read all answers, so that nothing is read from it."""
    half_since_s: float | None = None
    frames: int = 0
    """When a frame was last seen half, and how many had come by then."""
    is_closed: bool = False

    def __str__(self) -> str:
        who = "" if self.role is None else f"{self.role.value}, "
        engine = "" if self.member is None else f" of engine {self.member.owner.engine}"
        return f"{who}process {self.credentials.pid or '?'}{engine}"

    def late(self, now_s: float, limits: Limits) -> str:
        """Return what it is late with; empty if it is not."""
        if self.role is None:
            return f"no hello within {limits.hello_s:g} s" if now_s - self.since_s >= limits.hello_s else ""
        is_half = self.connection.is_half and not self.is_blocked and not self.waiting  # else the rest may have come
        if not is_half or self.connection.frames != self.frames:
            self.half_since_s, self.frames = None, self.connection.frames
        if is_half and self.half_since_s is None:
            self.half_since_s = now_s
        is_late = self.half_since_s is not None and now_s - self.half_since_s >= limits.half_frame_s
        return f"half a frame for {limits.half_frame_s:g} s" if is_late else ""
