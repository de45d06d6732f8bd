"""Canaries where several ranks write one copy."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvtide.core.messages import Copy, Name
from kvtide.core.share import Share
from kvtide.sim.canaries.base import Patches, around, canary


@canary("F27", "the last block of a store is left to nobody", "I3")
def nobodys_block() -> Patches:
    def leaving(of_store: Callable[..., Copy], self: Share, copy: Copy) -> Copy:
        mine = of_store(self, copy)
        is_last = self.count > 1 and mine.slots[-1:] == copy.slots[-1:]
        return replace(mine, blocks=mine.blocks[:-1], slots=mine.slots[:-1]) if is_last else mine

    return [around(Share, "of_store", leaving)]


@canary("F27", "every rank writes all that it shares with others", "I7")
def everybodys_blocks() -> Patches:
    return [around(Share, "of_store", lambda _, self, copy: copy)]


@canary("F27", "a block is looked for below the host by nobody, and counts as found", "I3")
def nobodys_fetch() -> Patches:
    def none(of_names: Callable[..., list[int]], self: Share, names: Sequence[Name]) -> list[int]:
        return [] if self.count > 1 else of_names(self, names)

    return [around(Share, "of_names", none)]
