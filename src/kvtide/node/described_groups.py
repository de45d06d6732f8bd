"""Attention groups in the description of a namespace: what a request needs to resume decides what a look-up finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvtide.core import ChunkedLocal, FullAttention, Geometry, Group, SlidingWindow, StateSpace
from kvtide.errors import ConfigError
from kvtide.node.errors import BadFrame
from kvtide.node.namespaces import Description

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (FullAttention, SlidingWindow, ChunkedLocal, StateSpace)
}
_BLOCKS = 1 << 40
"""Of the device: how many it has is the engine's business."""


def described(groups: Sequence[Group]) -> list[dict[str, object]]:
    """Return groups as JSON."""
    return [{"kind": type(group).__name__, **asdict(group)} for group in groups]


def groups_of(description: Description) -> tuple[Group, ...]:
    """Return the groups of a namespace. Raises `BadFrame` for what is none."""
    said = description.get("groups")
    if not isinstance(said, list):
        raise BadFrame("a namespace without groups")
    try:
        groups = tuple(_group(**each) for each in said)
        Geometry(groups=groups, block_bytes=1, device_blocks=_BLOCKS)  # which checks them
    except (TypeError, ConfigError, KeyError, ValueError) as error:
        raise BadFrame(f"a namespace with groups that make no sense ({error})") from None
    return groups


def _group(kind: str, **numbers: int) -> Group:
    if not all(type(number) is int and 0 < number < 1 << 31 for number in numbers.values()):
        raise ValueError("numbers of tokens")
    group: Group = _KINDS[kind](**numbers)
    return group
