"""Every check has its turn and its deadline, whatever the others do."""

from __future__ import annotations

import threading

from kvtide.doctor.base import Check, Finding, Health, Result, ok
from kvtide.doctor.rounds import run_checks


def never_slow(check: Check) -> None:
    raise AssertionError(f"{check.name} is said to be slow")


def run(*checks: Check) -> list[Result]:
    return list(run_checks(checks, never_slow, patience_s=60))


def test_checks_are_run_in_order_and_say_what_they_found() -> None:
    checks = Check("first", lambda: ok("1")), Check("second", lambda: ok("2"))
    assert [(result.check.name, result.finding) for result in run(*checks)] == [("first", ok("1")), ("second", ok("2"))]


def test_a_check_that_raises_is_a_finding_and_the_next_one_is_run() -> None:
    def raises() -> Finding:
        raise ZeroDivisionError("why")

    first, second = run(Check("broken", raises), Check("next", lambda: ok("well")))
    assert first.finding.health is Health.WARNING
    assert "ZeroDivisionError: why" in first.finding.found
    assert first.finding.advice
    assert second.finding == ok("well")


def test_even_a_check_that_ends_the_process_ends_nothing() -> None:
    def leaves() -> Finding:
        raise SystemExit(3)

    (result,) = run(Check("leaves", leaves))
    assert "SystemExit" in result.finding.found


def test_a_check_that_does_not_come_back_is_bad_after_its_deadline_and_the_next_one_is_run() -> None:
    release, slow = threading.Event(), []

    def hangs() -> Finding:
        release.wait(60)
        return ok("too late")

    checks = Check("hangs", hangs, deadline_s=0.05), Check("next", lambda: ok("well"))
    first, second = run_checks(checks, lambda check: slow.append(check.name), patience_s=0.01)
    release.set()
    assert first.finding.health is Health.BAD
    assert "no answer in 0.05 s" in first.finding.found
    assert second.finding == ok("well")
    assert slow[0] == "hangs"


def test_who_waits_is_told_what_for_before_the_check_has_ended() -> None:
    told = threading.Event()

    def slow() -> Finding:
        return ok("told" if told.wait(60) else "not told")

    (result,) = run_checks([Check("slow", slow, deadline_s=60)], lambda _: told.set(), patience_s=0.01)
    assert result.finding == ok("told")


def test_a_check_is_called_by_its_name_and_what_it_is_about() -> None:
    assert Check("disk", lambda: ok("")).title == "disk"
    assert Check("disk", lambda: ok(""), "tiers[0]").title == "disk of tiers[0]"
