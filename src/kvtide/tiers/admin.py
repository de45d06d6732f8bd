"""What operators do with a place: look at it, verify it, empty it. `kvtide tier` does it by the calls of `Kind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtide.errors import ConfigError

Progress = Callable[[int, int | None], None]
"""Called now and then with bytes done and, if known, bytes in all (records, where bytes are not known)."""


class OtherFormat(ConfigError):
    """A store that this version cannot read. It can be cleared all the same."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification found."""

    records: int
    """Records that were read."""
    bytes: int
    corrupt: tuple[str, ...]
    """Where those are that do not verify, at most a hundred: key in hexadecimal, and place."""
    corrupt_records: int
    """All of them."""
    other_formats: tuple[str, ...] = ()
    """Stores that were not read, for this version of kvtide cannot."""
