"""The clocks: that which deadlines are measured by, and that of the wall against a store's."""

from __future__ import annotations

import time

from kvtide.doctor.base import Finding, ok, warning
from kvtide.doctor.machine import Machine
from kvtide.units import seconds_text

RESOLUTION_S_MAX = 0.001
"""Deadlines are written in milliseconds."""
APART_S_MAX = 2.0
_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
_SLOW_SOURCES = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")


def check_clock(machine: Machine, resolution_s: float | None = None) -> Finding:
    """Say how finely deadlines are measured, and whether looking at the clock is cheap."""
    if resolution_s is None:
        resolution_s = time.get_clock_info("monotonic").resolution
    source = machine.read(_SOURCE)
    found = f"steps of {resolution_s * 1e9:,.0f} ns" + (f", from {source}" if source else "")
    if resolution_s > RESOLUTION_S_MAX:
        return warning(
            found, "use a kernel with high-resolution timers (CONFIG_HIGH_RES_TIMERS): deadlines are coarse here"
        )
    if source in _SLOW_SOURCES:
        return warning(
            found, "let the kernel use the processor's clock (boot with tsc=reliable): every look at this one is slow"
        )
    return ok(found)


def check_wall_clock(store: str, behind_s: float) -> Finding:
    """Compare this machine's wall clock with a store's. `behind_s`: how much later it is there."""
    found = f"{seconds_text(abs(behind_s))} {'behind' if behind_s > 0 else 'ahead of'} {store}"
    if abs(behind_s) > APART_S_MAX:
        return warning(
            found, "let both machines keep time (chrony or systemd-timesyncd): TLS and logs of two machines rely on it"
        )
    return ok(found)
