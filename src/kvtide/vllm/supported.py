"""Which versions of vLLM kvtide is tested with. Imports nothing of vLLM, for those who only want to know."""

from __future__ import annotations

import re

OLDEST = (0, 24, 0)
NEWEST = (0, 32, 0)
RANGE = " to ".join(".".join(map(str, version)) for version in (OLDEST, NEWEST))


def is_tested(version: str) -> bool:
    """Say whether a version is one of those, whatever its last number."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return OLDEST[:2] <= numbers <= NEWEST[:2]
