"""Numbers as people read them."""

from __future__ import annotations

_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_KIBI = 1024
_LONGER = ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h"))
"""Up to so many seconds: how many a unit has, and its name."""


def size_text(size: float) -> str:
    """Return bytes as text: "256 GiB"."""
    if size == 1:
        return "1 byte"
    for unit in _BINARY[:-1]:
        if size < _KIBI:
            return f"{size:.4g} {unit}"
        size /= _KIBI
    return f"{size:.4g} {_BINARY[-1]}"


def how_many(count: float, what: str) -> str:
    """Return a count of things.

    >>> how_many(1, "block"), how_many(2000, "block"), how_many(0, "look-up")
    ('1 block', '2,000 blocks', '0 look-ups')
    """
    number = f"{count:,.0f}"
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


def given_text(size: float, left: float, to: str) -> str:
    """Say how much memory was given to whom. That nothing is left does not mean that it is full.

    >>> given_text(256 << 20, 0, "models")
    '256 MiB, all given to models'
    """
    if not left:
        return f"{size_text(size)}, all given to {to}"
    return f"{size_text(size)}, {'none' if left == size else f'all but {size_text(left)}'} given to {to}"


def percent_text(share: float) -> str:
    """Return a share as text: "31.4%"."""
    return f"{share:.1%}"


def seconds_text(seconds: float) -> str:
    """Return a time as text: "35 ms", "1.2 s", "18 min", "5.5 h", "12.5 days"."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for end_s, unit_s, unit in _LONGER:
        if seconds < end_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"
