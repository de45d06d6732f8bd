"""Group layouts: which kinds of attention a simulated model mixes."""

from __future__ import annotations

from collections.abc import Callable

from kvtide.sim.attention import Attention, Chunked, Full, Layout, Sliding, State, first_blocks
from kvtide.sim.draw import Draw

_KINDS: dict[str, Callable[[Draw, int], Attention]] = {
    "full": lambda _, size: Full(size),
    "large": lambda _, size: Full(2 * size),
    "sliding": lambda draw, size: Sliding(size, draw.between(2, 5 * size)),
    "large-sliding": lambda draw, size: Sliding(2 * size, draw.between(2, 5 * size)),
    "chunked": lambda draw, size: Chunked(size, size * draw.between(1, 4)),
    "state": lambda draw, size: State(2 * size if draw.chance(64) else size),
}

LAYOUTS = (
    "full",
    "sliding",
    "chunked",
    "state",
    "full+sliding",
    "full+chunked",
    "full+state",
    "full+large",
    "full+large-sliding",
    "sliding+state",
    "full+sliding+chunked",
    "full+sliding+chunked+state",
)
"""What each is made of is its name."""


def draw_layout(name: str, draw: Draw, block_tokens: int) -> Layout:
    """Make the groups of a layout. `block_tokens` is the smallest block size."""
    return tuple(_KINDS[kind](draw, block_tokens) for kind in name.split("+"))


def blocks_needed_max(groups: Layout, total_tokens: int, chunk_tokens: int) -> int:
    """Return the most blocks that a request of `total_tokens` holds at a time if it computes in chunks."""
    most = 0
    for start in range(total_tokens):
        end = min(total_tokens, start + chunk_tokens)
        held = sum(-(-end // group.block_tokens) - first_blocks(group)[start] for group in groups)
        most = max(most, held)
    return most
