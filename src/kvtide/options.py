"""Reading values that people write: each either means what it says or is refused by name (F22)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

from kvtide.errors import ConfigError

Choice = TypeVar("Choice", bound=str)

_NEAR = 0.65
"""How alike a mistyped name has to be, from 0 to 1."""
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    for _binary in ("", "i", "ib"):
        _UNITS[f"{_letter}{_binary}"] = 1024**_power
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_size(option: str, value: object, *, minimum: int = 1) -> int:
    """Read a number of bytes: an integer, or text such as "64GiB", "64G", which is the same, or "500 MB"."""
    expected = 'a size in bytes above 0, such as 4096 or "64GiB"; units are KiB to PiB, and KB to PB'
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip().lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(option, value, expected)
        size = int(Fraction(match[1]) * _UNITS[match[2]])
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        raise ConfigError(option, value, expected)
    if size <= 0:
        raise ConfigError(option, value, expected)
    if size < minimum:
        raise ConfigError(option, value, f'at least {minimum} bytes; a number alone is bytes, not GiB: "64GiB"')
    return size


def parse_count(option: str, value: object, *, minimum: int = 1) -> int:
    """Read a whole number that is at least `minimum`. Neither text nor booleans are numbers."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(option, value, f"a whole number of at least {minimum}")
    return value


def parse_choice(option: str, value: object, choices: tuple[Choice, ...]) -> Choice:
    """Read one of a few words."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise ConfigError(option, value, one_of(value, choices))


def check_names(given: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse an option whose name is not known."""
    for name, value in given.items():
        if name not in known:
            raise ConfigError(name, value, unknown("option", name, known))


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Say that something of this name is not known, which name may have been meant, and all there are."""
    return f"a known {what}; {did_you_mean(name, known)}known are {', '.join(known)}"


def one_of(value: object, choices: Iterable[str]) -> str:
    """Say which words are expected, and which of them may have been meant."""
    known = list(choices)
    return f"one of {', '.join(known)}; {did_you_mean(value, known) if isinstance(value, str) else ''}".rstrip("; ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name, with a space behind it; empty if no known name is near."""
    near = nearest(name, known)
    return "" if near is None else f'did you mean "{near}"? '


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that may have been meant, if one is near. A wrong hint is worse than none.

    Letters alone are not enough: "redis" has three of "disk". Who mistypes gets the first letter right, swaps two, or
    leaves the first part out.

    >>> nearest("lur", ["lru", "arc"]), nearest("threads", ["copy_threads"]), nearest("redis", ["disk", "valkey"])
    ('lru', 'copy_threads', None)
    """
    small = name.lower()
    by_small = {each.lower(): each for each in known}
    for near in difflib.get_close_matches(small, by_small, n=3, cutoff=_NEAR):
        if near[0] == small[0] or sorted(near) == sorted(small) or near.endswith(small):
            return by_small[near]
    return None


def parse_flag(option: str, value: object) -> bool:
    """Read a boolean. The text "false" is refused, because it would count as true."""
    if not isinstance(value, bool):
        raise ConfigError(option, value, "true or false, without quotes")
    return value
