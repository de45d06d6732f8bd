"""What people and programs are shown."""

from __future__ import annotations

import pytest

from kvtide.doctor.base import Check, Finding, Result, bad, ok, warning
from kvtide.doctor.show import as_json, lines_of, summary_of

LONG = "a rather long sentence about what was found here, with /a/path/that/should/stay/in/one/piece/to/be/copied in it"


def result(finding: Finding, about: str = "") -> Result:
    return Result(Check("thing", lambda: finding, about), finding)


def test_a_result_is_its_health_its_name_and_what_was_found() -> None:
    assert list(lines_of(result(ok("all is well")), 80)) == ["ok      thing: all is well"]
    assert list(lines_of(result(bad("it is not", "fix it"), "tiers[0]"), 80)) == [
        "bad     thing of tiers[0]: it is not",
        "        -> fix it",
    ]


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_width_but_for_words_that_cannot_be_broken(width: int) -> None:
    lines = list(lines_of(result(warning(LONG, LONG)), width))
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert sum("/a/path/that/should/stay/in/one/piece/to/be/copied" in line for line in lines) == 2
    assert len(summary_of([result(ok("well"))], width).splitlines()[0]) <= width


def test_the_last_line_counts_and_says_what_it_means() -> None:
    fine, better, broken = result(ok("")), result(warning("", "do")), result(bad("", "do"))
    assert summary_of([fine, better], 80) == "1 ok, 1 warning, 0 problems: may serve"
    assert summary_of([fine, fine, broken], 80) == "2 ok, 0 warnings, 1 problem: not ready to serve"


def test_programs_get_every_part_by_name() -> None:
    assert as_json([result(bad("it is not", "fix it"), "tiers[0]")]) == [
        {"name": "thing", "about": "tiers[0]", "health": "bad", "found": "it is not", "advice": "fix it"}
    ]
