"""Numbers and curves as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvtide.units import how_many, percent_text, seconds_text, size_text

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.:-=+*#"
UNKNOWN = "-"


def short_url(url: str) -> str:
    """Return what tells a server from others."""
    return re.sub(r"^https?://|/metrics$", "", url)


def share_text(share: float | None) -> str:
    """Return a share: "31.4%"."""
    return UNKNOWN if share is None else percent_text(share)


def rate_text(bytes_per_s: float | None) -> str:
    """Return a speed: "1.2 GiB/s"."""
    return UNKNOWN if bytes_per_s is None else f"{_short(bytes_per_s)}/s"


def bytes_text(size: float | None) -> str:
    """Return a size: "64 GiB"."""
    return UNKNOWN if size is None else _short(size)


def time_text(milliseconds: float | None) -> str:
    """Return a time: "35 ms". It may be negative: a loss."""
    if milliseconds is None:
        return UNKNOWN
    return ("-" if milliseconds < 0 else "") + seconds_text(abs(milliseconds) / 1000)


def count_text(count: float) -> str:
    """Return a count that fits seven columns: "1,234", "12.3k", "4.5M"."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{count:,.0f}"


def engines_text(count: float) -> str:
    """Return how many engines: "1 engine", "3 engines"."""
    return how_many(count, "engine")


def reasons_text(reasons: dict[str, float]) -> str:
    """Return the most frequent reasons first: "not_cached 1,234, last_token 12"."""
    return ", ".join(f"{why} {count_text(count)}" for why, count in reasons.items()) or "none"


def sparkline(values: Sequence[float | None], width: int, *, top: float | None = None, ascii_only: bool = False) -> str:
    """Return the last values as a curve, one column each; a space where nothing is known.

    `top` is the value of a full column; the largest one unless it is given.

    >>> sparkline([0, None, 0.5, 1], 6, top=1)
    '  ▁ ▅█'
    """
    bars = ASCII_BARS if ascii_only else BARS
    last = list(values[-width:]) if width > 0 else []
    highest = top or max((value for value in last if value is not None), default=0.0)
    columns = (
        " " if value is None else bars[round(min(1.0, max(0.0, value / highest)) * (len(bars) - 1)) if highest else 0]
        for value in last
    )
    return "".join(columns).rjust(width)


def bar(share: float | None, width: int, *, ascii_only: bool = False) -> str:
    """Return a share as a bar: "████░░░░"."""
    full, empty = ("#", ".") if ascii_only else ("█", "░")
    filled = round(min(1.0, max(0.0, share or 0.0)) * width)
    return full * filled + empty * (width - filled)


def _short(size: float) -> str:
    return re.sub(" bytes?$", " B", size_text(size))
