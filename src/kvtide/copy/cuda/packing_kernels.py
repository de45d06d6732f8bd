"""Kernels that pack blocks while they gather them, and scatter them while they unpack. Needs Triton.

The format is that of `kvtide.copy.packing.format`. A program takes `UNITS` tiles at a time, each as 128 lanes: a lane
has one 32-bit word, two values, of each of the tile's four groups, and what it computes for both halves of a word it
computes at once. All it writes are the two words of signs and mantissas and the one of codes that these four become.

Only largest exponents and ranks of escapes go across lanes. Hardly any lane has two escapes, so they are handled in
turns: in each, a lane has one at most.
"""

# No `from __future__ import annotations`: Triton reads annotations, and what it does not know it refuses, hence
# functions without types (see pyproject.toml).
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    tl: Any
    constexpr = Any
    int64 = Any
    jit: Callable[..., Callable[[Callable[..., Any]], Any]]
else:
    import triton.language as tl
    from triton import jit
    from triton.language import constexpr, int64


@jit()
def _largest(words):
    """Return the largest exponent of each row of words."""
    return tl.max(tl.maximum(words & 0x7F800000, words << 16 & 0x7F800000), axis=1) >> 23


@jit()
def _codes(words, largest):
    """Return the codes of both halves of each word."""
    exponents = words >> 7 & 0x00FF00FF
    below = (largest * 0x00010001)[:, None] - exponents
    far = below + 0x7FF27FF2 >> 15 & 0x00010001  # 1 where it is 14 or more below
    zero = ~(exponents + 0x00FF00FF >> 8) & 0x00010001
    return (below | far * 15) & 0x000F000F ^ far & zero


@jit()
def _signs(words):
    return words >> 8 & 0x00800080 | words & 0x007F007F


@jit()
def _escapes(codes):
    """Return, for each word of codes, a 1 where one is 15, how many there are, and how many are in lanes before."""
    escaped = codes & codes >> 1 & codes >> 2 & codes >> 3 & 0x11111111
    count = (escaped * 0x11111111 >> 28).to(tl.int32)
    return escaped, count, tl.cumsum(count, axis=1) - count


@jit()
def _next_escape(escaped):
    """Return the first escape of each lane: whether it is in the second two groups, and by how much it is shifted."""
    place = ((escaped & -escaped).to(tl.float32).to(tl.uint32, bitcast=True) >> 23) - 127 >> 2
    return (place & 2) != 0, (place & 1) * 8 + (place & 4) * 4


@jit()
def _values(signs, codes, largest, escapes):
    """Return words of two values each from what each half has of them. Nothing is carried from half to half."""
    special = codes + 0x7FF27FF2 >> 15 & 0x00010001
    exponents = ((largest * 0x00010001 | 0x01000100)[:, None] - codes) & 0x00FF00FF & ~(special * 255) | escapes
    return (signs & 0x00800080) << 8 | exponents << 7 | signs & 0x007F007F


@jit()
def _store_two(to, lane, length, signs, codes, largest, escapes):  # noqa: PLR0917
    """Write two groups, from the low ends of what is given."""
    for group in tl.static_range(2):
        words = _values(
            signs >> 8 * group & 0x00FF00FF,
            codes >> 4 * group & 0x000F000F,
            largest >> 8 * group & 0xFF,
            escapes >> 8 * group & 0x00FF00FF,
        )
        tl.store(to + 128 * group, words.to(tl.int32, bitcast=True), mask=lane + 128 * group < length)


@jit(do_not_specialize=["first", "pairs", "tiles", "rows_at", "row_stride"])
def pack_blocks(  # noqa: PLR0917 - Triton reads what it is told of types
    anchor,
    byte_anchor,
    table,
    index,
    unpacked,
    first,
    pairs,
    tiles,
    rows_at: int64,
    row_stride: int64,
    SCATTERED: constexpr,  # noqa: N803 - Triton writes constants so
    ESCAPES_MAX: constexpr,  # noqa: N803
    UNITS: constexpr,  # noqa: N803
):
    """Gather and pack the blocks of `pairs` pairs of the index, from its pair `first` on.

    Addresses and strides are 32-bit words, addresses counted from `anchor`, and all of them are divisible by 4.
    `byte_anchor` is the same address, for bytes. A 1 is written to `unpacked` for each pair whose block does not fit,
    at the pair's place in the index; nothing for others.
    """
    lane = tl.arange(0, 128)[None, :]
    total = pairs * tiles
    for start in range(tl.program_id(0) * UNITS, total, tl.num_programs(0) * UNITS):
        unit = start + tl.arange(0, UNITS)
        live = unit < total
        pair, tile = unit // tiles, unit % tiles
        block = tl.load(index + 2 * (first + pair), mask=live, other=0)
        number = pair.to(tl.int64)
        if SCATTERED:
            number = tl.load(index + 2 * (first + pair) + 1, mask=live, other=0)
        origin = tl.load(table + tile, mask=live, other=0)
        stride = tl.load(table + tiles + tile, mask=live, other=0)
        length = tl.multiple_of(tl.load(table + 2 * tiles + tile, mask=live, other=0), [4])[:, None]
        source = anchor + (tl.multiple_of(origin + block * stride, [4])[:, None] + lane)
        a = tl.load(source, mask=lane < length, other=0).to(tl.uint32, bitcast=True)
        b = tl.load(source + 128, mask=lane + 128 < length, other=0).to(tl.uint32, bitcast=True)
        c = tl.load(source + 256, mask=lane + 256 < length, other=0).to(tl.uint32, bitcast=True)
        d = tl.load(source + 384, mask=lane + 384 < length, other=0).to(tl.uint32, bitcast=True)
        a_max, b_max, c_max, d_max = _largest(a), _largest(b), _largest(c), _largest(d)
        codes = _codes(a, a_max) | _codes(b, b_max) << 4 | _codes(c, c_max) << 8 | _codes(d, d_max) << 12
        escaped, count, rank = _escapes(codes)

        row = rows_at + number * row_stride + tile * 388
        to = anchor + (tl.multiple_of(row, [4])[:, None] + lane)
        used = live[:, None]
        tl.store(to + 4, (_signs(a) | _signs(b) << 8).to(tl.int32, bitcast=True), mask=used)
        tl.store(to + 132, (_signs(c) | _signs(d) << 8).to(tl.int32, bitcast=True), mask=used)
        tl.store(to + 260, codes.to(tl.int32, bitcast=True), mask=used)
        # Little, but in the shape of the rest: another one goes through shared memory, with barriers.
        largest = (a_max | b_max << 8 | c_max << 16 | d_max << 24)[:, None] | tl.zeros_like(codes)
        tl.store(to, largest.to(tl.int32, bitcast=True), mask=used & (lane == 0))
        escapes = tl.sum(count, axis=1)
        to_bytes = byte_anchor + row[:, None] * 4
        no_escape = (lane >= 4 + escapes[:, None]) & (lane < 4 + ESCAPES_MAX)
        tl.store(to_bytes + lane, tl.zeros_like(codes).to(tl.int8), mask=used & no_escape)
        tl.atomic_max(unpacked + first + pair, 1, mask=live & (escapes > ESCAPES_MAX), sem="relaxed")

        for _ in range(tl.max(tl.max(count, axis=1), axis=0)):
            in_second, shift = _next_escape(escaped)
            low, high = tl.where(in_second, c, a) >> 7, tl.where(in_second, d, b) >> 7
            exponent = (((low & 0x00FF00FF) | (high & 0x00FF00FF) << 8) >> shift).to(tl.int8)
            tl.store(to_bytes + (4 + rank), exponent, mask=(escaped != 0) & (rank < ESCAPES_MAX))
            escaped &= escaped - 1
            rank += 1


@jit(do_not_specialize=["first", "pairs", "tiles", "rows_at", "row_stride"])
def unpack_blocks(  # noqa: PLR0917
    anchor,
    byte_anchor,
    table,
    index,
    first,
    pairs,
    tiles,
    rows_at: int64,
    row_stride: int64,
    SCATTERED: constexpr,  # noqa: N803
    ESCAPES_MAX: constexpr,  # noqa: N803
    UNITS: constexpr,  # noqa: N803
):
    """Unpack and scatter blocks: the way back of `pack_blocks`. Whatever the bytes, it stays inside its blocks."""
    lane = tl.arange(0, 128)[None, :]
    total = pairs * tiles
    for start in range(tl.program_id(0) * UNITS, total, tl.num_programs(0) * UNITS):
        unit = start + tl.arange(0, UNITS)
        live = unit < total
        pair, tile = unit // tiles, unit % tiles
        block = tl.load(index + 2 * (first + pair), mask=live, other=0)
        number = pair.to(tl.int64)
        if SCATTERED:
            number = tl.load(index + 2 * (first + pair) + 1, mask=live, other=0)
        row = rows_at + number * row_stride + tile * 388
        source = anchor + (tl.multiple_of(row, [4])[:, None] + lane)
        used = live[:, None]
        ab = tl.load(source + 4, mask=used, other=0).to(tl.uint32, bitcast=True)
        cd = tl.load(source + 132, mask=used, other=0).to(tl.uint32, bitcast=True)
        codes = tl.load(source + 260, mask=used, other=0).to(tl.uint32, bitcast=True)
        largest = tl.load(anchor + row, mask=live, other=0).to(tl.uint32, bitcast=True)

        escaped, count, rank = _escapes(codes)
        escapes = byte_anchor + row[:, None] * 4 + 4
        ab_escapes, cd_escapes = tl.zeros_like(codes), tl.zeros_like(codes)
        for _ in range(tl.max(tl.max(count, axis=1), axis=0)):
            in_second, shift = _next_escape(escaped)
            exponent = tl.load(escapes + rank, mask=(escaped != 0) & (rank < ESCAPES_MAX), other=0)
            shifted = exponent.to(tl.uint8, bitcast=True).to(tl.uint32) << shift
            ab_escapes |= tl.where(in_second, 0, shifted)
            cd_escapes |= tl.where(in_second, shifted, 0)
            escaped &= escaped - 1
            rank += 1

        origin = tl.load(table + tile, mask=live, other=0)
        stride = tl.load(table + tiles + tile, mask=live, other=0)
        length = tl.multiple_of(tl.load(table + 2 * tiles + tile, mask=live, other=0), [4])[:, None]
        to = anchor + (tl.multiple_of(origin + block * stride, [4])[:, None] + lane)
        _store_two(to, lane, length, ab, codes, largest, ab_escapes)
        _store_two(to + 256, lane + 256, length, cd, codes >> 8, largest >> 16, cd_escapes)
