"""What operators do with a place: look at it, verify it, empty it. `kvtide tier` is the command.

A type's module has three functions for it. `place` is what the operator wrote: a path, or a URL with one of the
module's `URL_SCHEMES`; they raise `ConfigError` where it cannot be used.

    inspect(place: str, options: Mapping[str, object]) -> dict[str, object]
        What is there, as JSON: at least "records", "bytes", and "namespaces", a list of
        {"manifest": {...}, "records": n, "bytes": n}. Numbers that are not known are null.
    verify(place: str, options: Mapping[str, object], progress: Progress) -> Verified
        Read every record and check it. Changes nothing.
    clear(place: str, options: Mapping[str, object], progress: Progress) -> int
        Remove everything of kvtide's there. Returns the number of records removed.

`options` are those of the command line that have to do with access, by the names they have in the option `tiers`
(for example `password_file`). The module lists them in `ACCESS`, if it has any; others are refused before it is called.
Secrets are never on the command line.
"""

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


def no_progress(done: int, total: int | None) -> None:
    """Say nothing."""
