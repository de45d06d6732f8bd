"""Which keys a shared index was heard to have. It may have evicted them since: that costs a hit, no more."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.groups import Key


class KnownKeys:
    """A bounded memory of keys, in two generations: what was heard of last is never forgotten at once."""

    def __init__(self, groups: int, keys_max: int) -> None:
        """`keys_max`: so many are remembered, or a little more. 0: none."""
        self._groups = groups
        self._generation_max = keys_max // 2
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._young: list[set[Key]] = [set() for _ in range(self._groups)]
        self._old: list[set[Key]] = [set() for _ in range(self._groups)]

    def has(self, group: int, key: Key) -> bool:
        """Whether a key is remembered."""
        return key in self._young[group] or key in self._old[group]

    def add(self, group: int, keys: Sequence[Key]) -> None:
        """Remember keys of one group."""
        if not self._generation_max:
            return
        if sum(map(len, self._young)) + len(keys) > self._generation_max:
            self._old, self._young = self._young, [set() for _ in range(self._groups)]
        self._young[group].update(keys)

    def remove(self, group: int, keys: Sequence[Key]) -> None:
        """Forget keys of one group."""
        self._young[group].difference_update(keys)
        self._old[group].difference_update(keys)
