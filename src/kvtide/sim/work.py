"""What one step computes: which blocks are read and written, and what must be in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvtide.core.groups import NULL_BLOCK
from kvtide.sim.attention import Layout, first_blocks
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

    def describe(self) -> str:
        """Return the work in short form, for the log."""
        return " ".join(f"{item.request.id}[{item.start}:{item.end}]" for item in self.items)


def lay_out(step: int, items: list[Item], groups: Layout) -> StepWork:
    """Look up in the block tables what the items read and write."""
    read_blocks: list[int] = []
    read_stamps: list[int] = []
    write_blocks: list[int] = []
    write_stamps: list[int] = []
    for request, start, end, _, _ in items:
        for index, group in enumerate(groups):
            size, table, stamps = group.block_tokens, request.tables[index], request.stamps[index]
            first, begin = first_blocks(group)[start], start // size
            if first < begin:
                read_blocks += table[first:begin]
                read_stamps += stamps[first:begin]
            if start % size:
                # A load that ended inside a block has brought the whole block.
                loaded = start == request.resume_at > request.device_tokens
                read_blocks.append(table[begin])
                read_stamps.append(stamps[begin] if loaded else request.prefix_stamps[index][start])
            write_blocks += table[begin : -(-end // size)]
            write_stamps += stamps[begin : end // size]
            if end % size:
                write_stamps.append(request.prefix_stamps[index][end])
    assert NULL_BLOCK not in write_blocks, "the simulated engine computes without room"
    return StepWork(step, items, read_blocks, read_stamps, write_blocks, write_stamps)
