"""The kernels. Needs Triton; nothing else imports it at load.

`move_tiles` copies tiles of blocks between their regions and rows. A program copies `UNITS` tiles at a time, each as
`LANES` integers next to one another, and then goes on by the number of programs. Few programs are enough: HBM is 70
times faster than the link to the host, and what is left of the GPU belongs to compute.
"""

# No `from __future__ import annotations`: Triton reads them.
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    tl: Any
    constexpr = Any
    int64 = Any
    jit: Callable[..., Callable[[Callable[..., None]], Any]]
else:
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr, int64


@jit(do_not_specialize=["first", "pairs", "tiles", "rows_at", "row_stride"])
def move_tiles(  # noqa: PLR0917 - Triton reads what it is told of types
    anchor,
    table,
    index,
    first,
    pairs,
    tiles,
    rows_at: int64,
    row_stride: int64,
    TO_ROWS: constexpr,  # noqa: N803 - Triton writes constants so
    SCATTERED: constexpr,  # noqa: N803
    UNITS: constexpr,  # noqa: N803
    LANES: constexpr,  # noqa: N803
    ALIGN: constexpr,  # noqa: N803
):
    """Copy tiles of `pairs` pairs of the index, from its pair `first` on.

    Addresses and strides are elements, addresses counted from `anchor`, which has their type.

    Addresses that are cast from integers would do as well, but the compiler then forgets how they are aligned and
    splits every access of 16 bytes in two.
    """
    lane = tl.arange(0, LANES)[None, :]
    total = pairs * tiles
    for start in range(tl.program_id(0) * UNITS, total, tl.num_programs(0) * UNITS):
        unit = start + tl.arange(0, UNITS)
        live = unit < total
        pair, tile = unit // tiles, unit % tiles
        block = tl.load(index + 2 * (first + pair), mask=live, other=0)
        number = pair.to(tl.int64)
        if SCATTERED:
            number = tl.load(index + 2 * (first + pair) + 1, mask=live, other=0)
        row = rows_at + number * row_stride
        origin = tl.load(table + tile, mask=live, other=0)
        stride = tl.load(table + tiles + tile, mask=live, other=0)
        offset = tl.load(table + 2 * tiles + tile, mask=live, other=0)
        length = tl.load(table + 3 * tiles + tile, mask=live, other=0)
        in_region = anchor + (tl.multiple_of(origin + block * stride, [ALIGN])[:, None] + lane)
        in_row = anchor + (tl.multiple_of(row + offset, [ALIGN])[:, None] + lane)
        used = lane < tl.multiple_of(length, [ALIGN])[:, None]
        if TO_ROWS:
            tl.store(in_row, tl.load(in_region, mask=used), mask=used)
        else:
            tl.store(in_region, tl.load(in_row, mask=used), mask=used)


@jit(do_not_specialize=["source_at", "count"])
def fetch_numbers(to, source_at: int64, count, LANES: constexpr):  # noqa: N803
    """Copy `count` numbers to the beginning of `to`, from `source_at`, counted in numbers from there."""
    at = tl.program_id(0) * LANES + tl.arange(0, LANES)
    live = at < count
    tl.store(to + at, tl.load(to + (source_at + at), mask=live), mask=live)
