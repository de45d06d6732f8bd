"""Errors between a node and those who talk to it.

KVTideError
└── NodeError
    ├── BadFrame     what came makes no sense: the connection is closed
    ├── Gone         the other side has closed the connection, or does not read what it is sent
    ├── NoNode       nobody listens at the socket, at the moment
    └── Refused      one side does not want the other: says why, and whether it may be different later
"""

from __future__ import annotations

from kvtide.errors import KVTideError


class NodeError(KVTideError):
    """Base of them."""


class BadFrame(NodeError):
    """What came makes no sense."""


class Gone(NodeError):
    """The other side is gone, or as good as gone."""


class NoNode(NodeError):
    """Nobody listens at the socket. A node may come, or come back, at any time."""


class Refused(NodeError):
    """One side does not want the other."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        self.why = why
        self.for_good = for_good
        """Trying again makes no sense before somebody has changed something."""
        super().__init__(why)
