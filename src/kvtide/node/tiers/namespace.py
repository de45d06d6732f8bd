"""The namespace of blocks below a node's memory: all that an engine and its workers say that the bytes depend on."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kvtide.tiers.namespace import Namespace


def tier_namespace(
    described: Mapping[str, object], known: Mapping[str, object], block_bytes: int, parts: int
) -> Namespace:
    """Return it, for whatever part.

    `described` comes from a scheduler, and `known` from the worker of a part: what only that knows.
    """
    said = {**{f"engine.{name}": value for name, value in described.items()}}
    said |= {f"worker.{name}": value for name, value in known.items()}
    return Namespace(
        model=_text(described.get("model", "")),
        weights=_text(described.get("weights", "")),
        dtype=_text(described.get("dtype", "")),
        layout=_text(known.get("layout", "")),
        groups=_text(described.get("groups", "")),
        block_bytes=block_bytes,
        attention=_text(known.get("attention", "")),
        hashing=_text(described.get("hashing", "")),
        world=parts,
        settings=tuple(sorted((name, _text(value)) for name, value in said.items())),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
