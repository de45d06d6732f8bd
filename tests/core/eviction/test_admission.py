"""Admission: what is asked for twice comes in."""

from __future__ import annotations

from kvtide.core.eviction.admission import REMEMBERED_POOLS, SecondUse


def test_the_first_time_nothing_comes_in_and_the_second_time_all() -> None:
    admission = SecondUse(10)
    assert admission.admit([b"a", b"b"]) == 0
    assert admission.admit([b"a", b"b", b"c"]) == 2
    assert admission.admit([b"c"]) == 1


def test_behind_what_is_kept_out_nothing_comes_in() -> None:
    admission = SecondUse(10)
    admission.admit([b"b"])
    assert admission.admit([b"a", b"b"]) == 0


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    admission = SecondUse(1)
    for number in range(100):
        admission.admit([b"%d" % number])
    assert admission.admit([b"0"]) == 0
    assert len(admission._seen) == REMEMBERED_POOLS
    assert admission.admit([b"99"]) == 1
