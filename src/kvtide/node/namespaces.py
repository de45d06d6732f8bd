"""Descriptions of namespaces: who has the same one shares blocks, and who has not is told why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

Description = Mapping[str, object]
"""All that the bytes depend on, as JSON. To the node only these mean something: `parts` and `rows` (`BlockSizes`);
`groups`; `model`, a name; `private`: no other engine will ever have the same one, nor the same engine again.
"""

_SHOWN = 3
_VALUE_MAX = 40
_BEFORE = 10
"""Characters that are shown of a long value, so many of them before the first that differs."""
_MODEL_MAX = 120


def name_of(description: Description) -> str:
    """Return a short name: the same for the same description, and for no other."""
    return hashlib.blake2b(_canonical(description).encode(), digest_size=8).hexdigest()


def model_of(description: Description) -> str:
    """Return the name of the model, for people: one line, and short."""
    model = description.get("model")
    return _canonical(model)[1:-1][:_MODEL_MAX] if isinstance(model, str) and model else "a model without a name"


def is_private(description: Description) -> bool:
    """Whether nobody can use its blocks once its engine has ended."""
    return "private" in description


def nearest(description: Description, others: Iterable[Description]) -> Description | None:
    """Return the one that is most like a namespace; None if there is no other."""
    return min(others, key=lambda other: len(_differing(description, other)), default=None)


def unlike(description: Description, others: Iterable[Description]) -> str:
    """Say in what a namespace differs from the one that is most like it; empty if there is no other."""
    other = nearest(description, others)
    if other is None:
        return ""
    found = _differing(description, other)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _differing(description: Description, other: Description) -> list[str]:
    names = sorted({*description, *other}, key=lambda name: (name != "model", name))  # another model says it all
    # Names as JSON writes them, in one line; without the quotes.
    pairs = [(_canonical(name)[1:-1], _shown(description, name), _shown(other, name)) for name in names]
    return [
        f"{name:.40} is {_cut(ours, theirs)}, not {_cut(theirs, ours)}"
        for name, ours, theirs in pairs
        if ours != theirs
    ]


def _cut(value: str, other: str) -> str:
    """Return the part of a value, if it is long, in which it differs from another one."""
    if len(value) <= _VALUE_MAX:
        return value
    pairs = enumerate(zip(value, other, strict=False))
    start = max(0, next((place for place, (one, two) in pairs if one != two), 0) - _BEFORE)
    end = start + _VALUE_MAX
    return ("…" if start else "") + value[start:end] + ("…" if end < len(value) else "")


def _shown(description: Description, name: str) -> str:
    return _canonical(description[name]) if name in description else "missing"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
