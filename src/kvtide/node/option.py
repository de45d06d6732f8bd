"""The option `node` of engines: which others mean nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping

from kvtide.errors import ConfigError

STAND_IN_BLOCKS = 8
"""For each block of the device so many of host memory are reckoned with, where the node has not said how many it has:
so many keys are remembered.
"""

_MEMORY = "the memory is the node's (kvtide node --memory SIZE)"
_BELOW = "what is below host memory is the node's, for all engines (kvtide node --tier)"
_BESIDE: Mapping[str, str] = {
    "host": _MEMORY,
    "host_per_rank": _MEMORY,
    "cpu_bytes_to_use": _MEMORY,
    "cpu_bytes_to_use_per_rank": _MEMORY,
    "tiers": _BELOW,
    "min_fetch_tokens": _BELOW,
    "policy": "which block leaves host memory is the node's to decide (kvtide node --policy NAME)",
    "events": "other engines store and evict blocks there too, and there are no events of that",
}
"""Options that mean nothing beside a node, and why. `"tiers": []` and `"events": false` ask for nothing."""


def refused_beside_node(given: Mapping[str, object]) -> list[ConfigError]:
    """Return what was written beside a node and would mean nothing."""
    if given.get("node") is None:
        return []
    return [
        ConfigError(name, given[name], f"no such option beside node: {why}")
        for name, why in _BESIDE.items()
        if name in given and given[name] not in (None, False, [], ())
    ]
