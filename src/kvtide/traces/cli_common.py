"""What the commands share: reading sizes, the option about what is stored."""

from __future__ import annotations

import re
from typing import get_args

import click

from kvtide.commands import Choice, option
from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.options import parse_size

NONE = "none"
"""What is written where there is to be nothing."""
_PER_SECOND = re.compile(r"\s*(/\s*s|ps)$")
_BITS = re.compile(r"bit|[0-9KMGTP]i?b(/\s*s|ps)?$")
"""A small b behind a large letter is a bit: 200Gb/s are 25GB/s."""
_RATE_MIN = 10**6


def admission_option() -> click.Option:
    """Return what chooses the blocks that are stored."""
    text = "which blocks are stored: all, or second-use: those that are asked for a second time"
    return option("--admission", text, Choice(get_args(Admission)), default="all")


def size(name: str, text: str) -> int:
    """Read a size that was given as an option."""
    return parse_size(name, int(text) if text.isascii() and text.isdigit() else text)


def size_or_none(name: str, text: str) -> int | None:
    """Read a size that was given as an option, or the word for nothing."""
    if text == NONE:
        return None
    try:
        return size(name, text)
    except ConfigError as error:
        raise ConfigError(name, text, f'"{NONE}", or {error.expected}') from None


def rate(name: str, text: str) -> int:
    """Read bytes per second that were given as an option. Bits, as links of networks have, are refused."""
    expected = 'bytes per second, such as "25GB/s"'
    if _BITS.search(text):
        raise ConfigError(name, text, f"{expected}; these are bits, of which eight are a byte")
    try:
        found = size(name, _PER_SECOND.sub("", text))
    except ConfigError:
        raise ConfigError(name, text, expected) from None
    if found < _RATE_MIN:
        raise ConfigError(name, text, f"{expected}; a number alone is bytes, and this is less than 1 MB/s")
    return found
