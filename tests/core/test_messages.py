"""What scheduler and workers say to each other can be sent, compared and asked whether it says anything."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from kvtide.core import Answer, Clear, Copy, Outcome, Plan, Pool, Report

MESSAGES: list[Any] = [
    Copy(1, (2, 3), (4, 5)),
    Plan(3, loads=(Copy(1, (2,), (4,)),), stores=(Copy(2, (3,), (5,)),), wait_for=(1,)),
    Report(1, done=(1, 2), failed=((3, "no memory"),)),
    Outcome(loaded=("a",), failed=("b",)),
    Plan(4, pool=Pool(2, "an epoch", 7)),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_the_way_to_another_process(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 (our own bytes)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_cannot_be_changed(message: Any) -> None:
    for field in fields(message):
        with pytest.raises(FrozenInstanceError):
            setattr(message, field.name, None)


def test_a_plan_is_true_when_there_is_something_to_do() -> None:
    copy = (Copy(1, (2,), (4,)),)
    assert not Plan(7)
    assert Plan(7, loads=copy)
    assert Plan(7, stores=copy)
    assert Plan(7, wait_for=(1,))
    assert Plan(7, errands=(Clear(1),))
    assert Plan(7, ask=(1,))


def test_a_report_is_true_when_there_is_something_to_say() -> None:
    assert not Report(0)
    assert Report(0, done=(1,))
    assert Report(0, failed=((1, "why"),))
    assert Report(0, slots_ready=0)
    assert Report(0, answers=(Answer(1),))
    assert Report(0, late=(1,))
