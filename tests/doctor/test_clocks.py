"""Clocks that deadlines can be measured by, and clocks that agree."""

from __future__ import annotations

from pathlib import Path

from kvtide.doctor.clocks import check_clock, check_wall_clock
from tests.doctor.support import is_ok, is_warning, machine

SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"


def test_the_clock_of_this_machine_has_fine_steps(tmp_path: Path) -> None:
    assert is_ok(check_clock(machine(tmp_path, {SOURCE: "tsc\n"})), "steps of", "from tsc")


def test_a_clock_with_steps_above_a_millisecond_is_a_warning(tmp_path: Path) -> None:
    assert is_warning(check_clock(machine(tmp_path), 0.01), "10,000,000 ns", "high-resolution")


def test_a_clock_that_is_slow_to_read_is_a_warning(tmp_path: Path) -> None:
    assert is_warning(check_clock(machine(tmp_path, {SOURCE: "hpet\n"})), "from hpet", "tsc=reliable")


def test_clocks_that_agree_are_well_and_others_a_warning() -> None:
    assert is_ok(check_wall_clock("valkey://a:1/0", 0.25), "250 ms behind valkey://a:1/0")
    assert is_warning(check_wall_clock("valkey://a:1/0", -3.0), "3 s ahead of valkey://a:1/0", "chrony")
