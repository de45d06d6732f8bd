"""The list of changes that change nothing: survivors that nobody can notice, each with the reason why.

storing/stores.py Stores.lose: if blocks: → if True:
    Adding no blocks to a counter changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

LIST = Path(__file__).parent / "equivalent.txt"
Reasons = dict[str, str]
"""By the name of a mutant."""


def read(text: str) -> Reasons:
    """Read a list: a name, and below it, indented, the reason. Lines that begin with # are for people."""
    reasons: Reasons = {}
    name = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            name = line.strip()
            if name in reasons:
                raise ValueError(f"line {number}: {name!r} is on the list twice")
            reasons[name] = ""
        elif name is None:
            raise ValueError(f"line {number}: a reason without a name above it")
        else:
            reasons[name] = f"{reasons[name]} {line.strip()}".lstrip()
    without = [name for name, reason in reasons.items() if not reason]
    if without:
        raise ValueError(f"no reason is given for {without[0]!r}")
    return reasons


def gone(reasons: Reasons, names: Collection[str]) -> list[str]:
    """Return what is on the list and can no longer be done to the source."""
    return [name for name in reasons if name not in names]
