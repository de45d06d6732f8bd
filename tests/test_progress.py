"""Progress: said now and then where nobody looks at a terminal, and not at all by what is quick."""

from __future__ import annotations

import pytest

from kvtide.progress import LinesNowAndThen, counted, progress


def test_lines_come_after_two_seconds_and_then_every_ten(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    lines = LinesNowAndThen(lambda: now_s)
    for step in range(30):
        now_s = 100.0 + step
        lines("requests", 10 * step, 1000)
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "kvtide: requests: 20 of 1,000, 2 s",
        "kvtide: requests: 120 of 1,000, 12 s",
        "kvtide: requests: 220 of 1,000, 22 s",
    ]


def test_without_a_terminal_what_is_quick_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtide.progress.FIRST_LINE_S", 600.0)  # a busy machine is not quick
    with progress() as advance:
        assert list(counted(range(1000), "requests", advance)) == list(range(1000))
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as advance:
        advance("replaying", 3, 10)
    assert "replaying" in capsys.readouterr().err
