"""Errors of traces.

KVTideError
└── TraceError         a trace cannot be read or used
    └── MalformedLine  one line of it cannot; it can be skipped
"""

from __future__ import annotations

from kvtide.errors import KVTideError


class TraceError(KVTideError, ValueError):
    """A trace cannot be read or used."""


class MalformedLine(TraceError):
    """One line of a trace has no meaning. `reason` says why without what is special to the line, to count by it."""

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message
