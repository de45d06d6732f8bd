"""Cached blocks whose parent is not cached.

Lazy mode stores the tail of a prefix before its head, and copies may complete in any order, so a child can be
there before its parent. It is remembered here under the parent's key until the parent comes or the child leaves.
"""

from __future__ import annotations

from kvtide.core.groups import Key

_Parent = tuple[int, Key]


class Orphans:
    """Children by the key of the parent they wait for. Usually empty in eager mode."""

    def __init__(self) -> None:
        self._children: dict[_Parent, set[int]] = {}
        self._waits_for: dict[int, _Parent] = {}

    def __len__(self) -> int:
        return len(self._waits_for)

    def add(self, slot: int, group: int, parent: Key) -> None:
        """Let `slot` wait for `parent`."""
        self._waits_for[slot] = (group, parent)
        self._children.setdefault((group, parent), set()).add(slot)

    def drop(self, slot: int) -> None:
        """Forget a child that leaves the cache. Unknown ones are ignored."""
        parent = self._waits_for.pop(slot, None)
        if parent is not None:
            children = self._children[parent]
            children.discard(slot)
            if not children:
                del self._children[parent]

    def take(self, group: int, parent: Key) -> list[int]:
        """Return the children of a parent that has come, in a fixed order; they wait no longer."""
        children = sorted(self._children.pop((group, parent), ()))
        for slot in children:
            del self._waits_for[slot]
        return children

    def clear(self) -> None:
        """Forget all."""
        self._children.clear()
        self._waits_for.clear()
