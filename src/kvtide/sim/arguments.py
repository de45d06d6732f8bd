"""Reading the arguments of `kvtide simulate`: each means what it says, or is refused with what is possible."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence

from kvtide.commands import Arguments, refuse_written
from kvtide.errors import ConfigError
from kvtide.options import unknown
from kvtide.sim.canaries import CANARIES, Canary

FRESH_SEED_BITS = 40
DIGITS_MAX = 18
_DURATION = re.compile(r"([0-9]{1,9})(s|m|h)?")
_DURATION_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}


def check_together(args: Arguments) -> None:
    """Refuse options that have no meaning together."""
    if args.seed is None:
        refuse_written(("log", "shrink"), "--seed N with it")
    else:
        refuse_written(("seeds", "first", "soak", "jobs"), "no --seed with it: that is one seed")
        if args.shrink:
            refuse_written(("log",), "no --shrink with it: shrink first, then look at the log of the result")
    if args.canary is not None:
        refuse_written(("seeds", "soak", "jobs"), "no --canary with it")


def first_seed(args: Arguments) -> int:
    """Return the first seed: the one that was asked for, or a fresh one."""
    if args.first is not None:
        return read_seed("--first", args.first)
    return random.SystemRandom().getrandbits(FRESH_SEED_BITS)


def read_seed(option: str, text: str) -> int:
    """Read a seed."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise ConfigError(option, text, f"a seed: a whole number from 0, of at most {DIGITS_MAX} digits")
    return int(text)


def duration_s(text: str) -> float:
    """Read a time."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise ConfigError("--soak", text, "a time, such as 90s, 10m or 2h")
    return int(match[1]) * _DURATION_UNITS_S[match[2] or ""]


def canary_names() -> list[str]:
    """Return everything that `--canary` understands."""
    return ["all", *_faults(), *(entry.name for entry in CANARIES)]


def _faults() -> list[str]:
    return sorted({entry.fault for entry in CANARIES}, key=lambda fault: int(fault[1:]))


def guards_by_fault() -> dict[str, list[str]]:
    """Return the names of the mutations, by the fault that each lets in."""
    return {fault: [entry.name for entry in CANARIES if entry.fault == fault] for fault in _faults()}


def canaries(name: str) -> Sequence[Canary]:
    """Return the mutations that a name stands for."""
    if name == "all":
        return CANARIES
    chosen = [entry for entry in CANARIES if name in (entry.fault, entry.name)]
    if not chosen:
        raise ConfigError("--canary", name, unknown("fault or guard", name, canary_names()))
    return chosen


def canary(name: str) -> Canary:
    """Return the one mutation that a name stands for."""
    chosen = canaries(name)
    if len(chosen) > 1:
        names = ", ".join(entry.name for entry in chosen)
        raise ConfigError("--canary", name, f"one mutation when there is one seed: {names}")
    return chosen[0]


def job_count(asked: int | None, *, all_cores: bool) -> int:
    """Return how many processes to use."""
    if asked is not None:
        return asked
    if not all_cores:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
