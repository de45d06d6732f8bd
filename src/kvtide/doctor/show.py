"""Results as lines for people, in whatever width they have, and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from kvtide.doctor.base import Health, Result

_MARK = 8
"""Columns of the first word and the space behind it."""


def lines_of(result: Result, width: int) -> Iterator[str]:
    """Yield the lines of one result. Words are not broken, so that paths and commands can be copied."""
    mark = result.finding.health.value.ljust(_MARK)
    yield from _wrapped(f"{result.check.title}: {result.finding.found}", mark, " " * _MARK, width)
    if result.finding.advice:
        yield from _wrapped(result.finding.advice, f"{' ' * _MARK}-> ", " " * (_MARK + 3), width)


def _wrapped(text: str, first: str, others: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )


def summary_of(results: Sequence[Result], width: int) -> str:
    """Say what comes of it all."""
    counts = Counter(result.finding.health for result in results)
    told = [_counted(counts[Health.WARNING], "warning"), _counted(counts[Health.BAD], "problem")]
    number = ", ".join([f"{counts[Health.OK]} ok", *told])
    return textwrap.fill(f"{number}: {'not ready to serve' if counts[Health.BAD] else 'may serve'}", width)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def as_json(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return the results for programs. `about` says which tier it is; empty where there is only one such thing."""
    return [
        {
            "name": result.check.name,
            "about": result.check.about,
            "health": result.finding.health.value,
            "found": result.finding.found,
            "advice": result.finding.advice,
        }
        for result in results
    ]
