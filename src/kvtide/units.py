"""Numbers as people read them."""

from __future__ import annotations

_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_KIBI = 1024
_MINUTES_FROM_S = 120


def size_text(size: float) -> str:
    """Return bytes as text: "256 GiB"."""
    for unit in _BINARY[:-1]:
        if size < _KIBI:
            return f"{size:.4g} {unit}"
        size /= _KIBI
    return f"{size:.4g} {_BINARY[-1]}"


def percent_text(share: float) -> str:
    """Return a share as text: "31.4%"."""
    return f"{share:.1%}"


def seconds_text(seconds: float) -> str:
    """Return a time as text: "35 ms", "1.2 s", "18 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < _MINUTES_FROM_S:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min"
