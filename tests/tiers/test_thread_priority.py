"""Threads that move bytes which nobody waits for let others go first, and are as before when they are done."""

from __future__ import annotations

import os

import pytest

from kvtide.tiers.thread_priority import in_no_hurry

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="batch scheduling: Only Linux has it.")


def test_a_thread_in_no_hurry_is_scheduled_as_a_batch_until_it_is_done() -> None:
    usual = os.sched_getscheduler(0)
    with in_no_hurry():
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == usual


def test_an_error_leaves_no_thread_behind_as_a_batch() -> None:
    with pytest.raises(ZeroDivisionError), in_no_hurry():
        raise ZeroDivisionError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_system_that_refuses_is_not_argued_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with in_no_hurry():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
