"""Threads that move bytes which nobody waits for let others go first, and are as before when they are done."""

from __future__ import annotations

import os

import pytest

from kvtide.tiers import Item
from kvtide.tiers.hurry import in_no_hurry
from kvtide.tiers.memory import MemoryBackend
from kvtide.tiers.queued import QueuedTier
from tests.contracts.tier_contract import block, get, key, put, room

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has such a policy")


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


def test_puts_are_in_no_hurry_and_gets_are() -> None:
    policies: dict[str, int] = {}

    class Noting(MemoryBackend):
        def put(self, items):  # type: ignore[no-untyped-def]
            policies["put"] = os.sched_getscheduler(0)
            return super().put(items)

        def get(self, items):  # type: ignore[no-untyped-def]
            policies["get"] = os.sched_getscheduler(0)
            return super().get(items)

    tier = QueuedTier(Noting(), threads=1)
    put(tier, [Item(key(1), block(1))])
    get(tier, [Item(key(1), room())])
    assert tier.close()
    assert policies == {"put": os.SCHED_BATCH, "get": os.SCHED_OTHER}
