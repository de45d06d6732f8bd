"""How long a short step lasts."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from kvtide.vllm import step_lengths
from kvtide.vllm.step_lengths import StepLengths


class Clock:
    """Begins steps at times that it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(step_lengths, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.steps = StepLengths()

    def after(self, *seconds: float, idle: bool = False) -> float:
        for each in seconds:
            self.now_s += each
            self.steps.begin(idle=idle)
        return self.steps.short_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_nothing_is_known_before_the_second_step(clock: Clock) -> None:
    assert clock.steps.short_s == math.inf
    assert clock.after(1.0) == math.inf
    assert clock.after(0.5) == 0.5


def test_long_steps_among_short_ones_do_not_count(clock: Clock) -> None:
    assert clock.after(0.0, *[0.25] * 4, 2.0, 0.25, 2.0) == 0.25


def test_one_step_that_is_issued_right_behind_another_does_not_count(clock: Clock) -> None:
    assert clock.after(0.0, 0.25, 0.25, 0.001, 0.25) == 0.25


def test_what_was_long_ago_does_not_count(clock: Clock) -> None:
    assert clock.after(0.0, *[0.25] * 9, *[0.5] * 8) == 0.5


def test_nobody_waits_while_nothing_computes_and_pauses_are_no_steps(clock: Clock) -> None:
    clock.after(0.0, 0.25, 0.25)
    assert clock.after(0.25, 10.0, idle=True) == math.inf
    assert clock.after(0.125) == 0.25
