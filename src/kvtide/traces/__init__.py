"""Traces: what a policy and a size of memory would give on recorded traffic, before anything is bought.

Start reading at `record.py`, the one record type that all readers and workloads produce.
"""

from __future__ import annotations

from kvtide.traces.errors import TraceError
from kvtide.traces.reader import Trace, open_trace
from kvtide.traces.record import TraceRequest

__all__ = ["Trace", "TraceError", "TraceRequest", "open_trace"]
