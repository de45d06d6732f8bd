"""Numbers about traces."""

from __future__ import annotations

import pytest

from kvtide.traces import TraceError, TraceRequest
from kvtide.traces.stats import trace_stats


def test_reuse_gaps_and_working_set_of_a_small_trace() -> None:
    stats = trace_stats(
        [
            TraceRequest(0, (1, 2), 8, 1, "a"),
            TraceRequest(10, (1, 3), 8, 1, "b"),
            TraceRequest(40, (1, 2), 8, 1, "a"),
        ]
    )
    assert (stats.requests, stats.sessions, stats.duration_s) == (3, 2, 40)
    assert (stats.uses, stats.unique_blocks, stats.used_once) == (6, 3, 1)
    assert stats.reuse_ratio == 0.5
    assert stats.gap_s(0.3) == pytest.approx(10, rel=0.06)
    assert stats.gap_s(1.0) == pytest.approx(40, rel=0.06)
    # Within 10 s: block 1 for 10 s after each of two uses, block 2 after one, block 3 for 10 s.
    assert stats.working_set[10] == pytest.approx((10 + 10 + 10 + 10) / 40)


def test_a_trace_without_reuse_has_no_gaps() -> None:
    stats = trace_stats([TraceRequest(0, (1,), 4, 1)])
    assert stats.gap_s(0.5) is None
    assert stats.working_set == {}


def test_a_trace_without_requests_is_an_error() -> None:
    with pytest.raises(TraceError, match="no requests"):
        trace_stats([])
