"""Group layouts: which kinds of attention a simulated model mixes."""

from __future__ import annotations

from collections.abc import Callable

from kvtide.sim.attention import Attention, Chunked, Full, Layout, Sliding, State, first_blocks
from kvtide.sim.draw import Draw


def _sliding(draw: Draw, size: int) -> Attention:
    return Sliding(size, draw.between(2, 5 * size))


def _large_sliding(draw: Draw, size: int) -> Attention:
    return Sliding(2 * size, draw.between(2, 5 * size))


def _chunked(draw: Draw, size: int) -> Attention:
    return Chunked(size, size * draw.between(1, 4))


def _state(draw: Draw, size: int) -> Attention:
    return State(2 * size if draw.chance(64) else size)


def _full(_: Draw, size: int) -> Attention:
    return Full(size)


def _large(_: Draw, size: int) -> Attention:
    return Full(2 * size)


LAYOUTS: dict[str, tuple[Callable[[Draw, int], Attention], ...]] = {
    "full": (_full,),
    "sliding": (_sliding,),
    "chunked": (_chunked,),
    "state": (_state,),
    "full+sliding": (_full, _sliding),
    "full+chunked": (_full, _chunked),
    "full+state": (_full, _state),
    "full+large": (_full, _large),
    "full+large-sliding": (_full, _large_sliding),
    "sliding+state": (_sliding, _state),
    "full+sliding+chunked": (_full, _sliding, _chunked),
    "full+sliding+chunked+state": (_full, _sliding, _chunked, _state),
}
"""By name: what a layout is made of."""


def draw_layout(name: str, draw: Draw, block_tokens: int) -> Layout:
    """Make the groups of a layout. `block_tokens` is the smallest block size."""
    return tuple(make(draw, block_tokens) for make in LAYOUTS[name])


def blocks_needed_max(groups: Layout, total_tokens: int, chunk_tokens: int) -> int:
    """Return the most blocks that a request of `total_tokens` holds at a time if it computes in chunks."""
    most = 0
    for start in range(total_tokens):
        end = min(total_tokens, start + chunk_tokens)
        held = sum(-(-end // group.block_tokens) - first_blocks(group)[start] for group in groups)
        most = max(most, held)
    return most
