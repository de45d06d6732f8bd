"""What one step computes: which blocks are read and written, and what must be in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvtide.core.groups import NULL_BLOCK
from kvtide.sim.request import SimRequest


class Item(NamedTuple):
    """Compute tokens `[start, end)` of a request."""

    request: SimRequest
    start: int
    end: int
    samples: bool
    """Whether a token comes out: all tokens before it are computed then."""
    life: int


@dataclass(slots=True, eq=False)
class StepWork:
    """The compute of one step, the same on every rank."""

    step: int
    items: list[Item]
    read_blocks: list[int]
    read_stamps: list[int]
    write_blocks: list[int]
    write_stamps: list[int]
    begun_tick: int = 0
    after_loads: tuple[int, ...] = ()
    """Loads that were announced before their end: compute begins when they have ended."""

    def describe(self) -> str:
        """Return the work in short form, for the log."""
        return " ".join(f"{item.request.id}[{item.start}:{item.end}]" for item in self.items)


Reads = tuple[int, Sequence[int]]
"""The block size of a group, and for each position the first block that the token at it reads."""


def lay_out(step: int, items: list[Item], groups: Sequence[Reads], after_loads: tuple[int, ...] = ()) -> StepWork:
    """Look up in the block tables what the items read and write.

    A block that one item fills and another one reads is written before it is read, layer by layer.
    """
    read_blocks: list[int] = []
    read_stamps: list[int] = []
    write_blocks: list[int] = []
    write_stamps: list[int] = []
    filled: dict[int, int] = {}
    for request, start, end, _, _ in items:
        for index, (size, first_blocks) in enumerate(groups):
            table, stamps = request.tables[index], request.stamps[index]
            first, begin = first_blocks[start], start // size
            if first < begin:
                blocks, contents = table[first:begin], stamps[first:begin]
                if filled and not filled.keys().isdisjoint(blocks):
                    kept = [at for at, block in enumerate(blocks) if filled.get(block) != contents[at]]
                    blocks, contents = [blocks[at] for at in kept], [contents[at] for at in kept]
                read_blocks += blocks
                read_stamps += contents
            if start % size:
                # A load that ended inside a block has brought the whole block.
                loaded = start == request.resume_at > request.device_tokens
                read_blocks.append(table[begin])
                read_stamps.append(stamps[begin] if loaded else request.prefix_stamps[index][start])
            if len(items) > 1:
                filled.update(zip(table[begin : end // size], stamps[begin : end // size], strict=True))
            write_blocks += table[begin : -(-end // size)]
            write_stamps += stamps[begin : end // size]
            if end % size:
                write_stamps.append(request.prefix_stamps[index][end])
    assert NULL_BLOCK not in write_blocks, "the simulated engine computes without room"
    return StepWork(step, items, read_blocks, read_stamps, write_blocks, write_stamps, after_loads=after_loads)
