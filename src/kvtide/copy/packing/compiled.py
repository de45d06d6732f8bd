"""The packed format on a CPU, at about the speed of a copy. Needs numba; nothing imports this at load.

The same arithmetic as the kernels', four values at once in a 64-bit word. Numba makes wide instructions of it, which it
does not of the same thing written for one value: with that it was 3 to 8 times slower. The GIL is not held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvtide.copy.packing.format import ESCAPES_MAX, Bytes, Values

if TYPE_CHECKING:
    from collections.abc import Callable

    njit: Callable[..., Callable[[Callable[..., Any]], Any]]
else:
    from numba import njit

_WORDS = 64
"""Words of a group."""
_SIGNS_AT, _CODES_AT = 2, 130
"""In words."""
_WORD = np.uint64
_ONES = _WORD(0x0001000100010001)
_EXPONENTS = _WORD(0x00FF00FF00FF00FF)
_CODES = _WORD(0x000F000F000F000F)
_SIGN, _MANTISSA = _WORD(0x0080008000800080), _WORD(0x007F007F007F007F)
_FAR = _WORD(0x7FF27FF27FF27FF2)
"""Added to a number, shows in its highest bit whether that is 14 or more."""
_NO_BORROW = _WORD(0x0100010001000100)
_EACH_CODE = _WORD(0x1111111111111111)
_1, _2, _3, _4, _7, _8, _12, _15, _255 = (_WORD(number) for number in (1, 2, 3, 4, 7, 8, 12, 15, 255))


def pack_into(values: Values, tiles: Bytes) -> npt.NDArray[np.bool_]:
    """Pack tiles into memory that is there; returns which of them fit. See `format.pack_tiles`."""
    fits = np.empty(len(values), dtype=np.bool_)
    _pack(values, values.view(np.uint64), tiles, tiles.view(np.uint64), fits)
    return fits


def unpack_into(tiles: Bytes, values: Values) -> None:
    """Unpack tiles into memory that is there. See `format.unpack_tiles`."""
    _unpack(tiles, tiles.view(np.uint64), values, values.view(np.uint64))


@njit(inline="always")
def _codes(words: Any, largest: Any) -> Any:
    exponents = (words >> _7) & _EXPONENTS
    below = largest * _ONES - exponents
    far = ((below + _FAR) >> _15) & _ONES
    zero = ~((exponents + _EXPONENTS) >> _8) & _ONES
    return ((below | far * _15) & _CODES) ^ (far & zero)


@njit(inline="always")
def _signs(words: Any) -> Any:
    return ((words >> _8) & _SIGN) | (words & _MANTISSA)


@njit(inline="always")
def _escaped(codes: Any) -> Any:
    """Return a 1 for each code that is 15."""
    return codes & (codes >> _1) & (codes >> _2) & (codes >> _3) & _EACH_CODE


@njit(inline="always")
def _values(signs: Any, codes: Any, largest: Any) -> Any:
    special = ((codes + _FAR) >> _15) & _ONES
    exponents = ((largest * _ONES | _NO_BORROW) - codes) & _EXPONENTS & ~(special * _255)
    return ((signs & _SIGN) << _8) | (exponents << _7) | (signs & _MANTISSA)


@njit(inline="always")
def _escape_places(words: Any, places: Any) -> Any:
    """Write down where the first escapes of a tile are, and return how many there are."""
    count = 0
    for at in range(_WORDS):
        escaped = _escaped(words[_CODES_AT + at])
        if escaped:
            for code in range(16):
                if (escaped >> _WORD(4 * code)) & _1:
                    if count < ESCAPES_MAX:
                        places[count] = 256 * (code & 3) + 4 * at + (code >> 2)
                    count += 1
    return count


@njit(nogil=True)
def _pack(values: Any, value_words: Any, tiles: Any, tile_words: Any, fits: Any) -> None:
    places = np.empty(ESCAPES_MAX, np.int64)
    for tile in range(len(values)):
        for group in range(4):
            largest = np.uint16(0)
            for place in range(256):
                largest = max(largest, np.uint16(values[tile, 256 * group + place] & np.uint16(0x7F80)))
            tiles[tile, group] = largest >> 7
        a_max, b_max = _WORD(tiles[tile, 0]), _WORD(tiles[tile, 1])
        c_max, d_max = _WORD(tiles[tile, 2]), _WORD(tiles[tile, 3])
        escaped = _WORD(0)
        for at in range(_WORDS):
            a, b = value_words[tile, at], value_words[tile, at + _WORDS]
            c, d = value_words[tile, at + 2 * _WORDS], value_words[tile, at + 3 * _WORDS]
            tile_words[tile, _SIGNS_AT + at] = _signs(a) | (_signs(b) << _8)
            tile_words[tile, _SIGNS_AT + _WORDS + at] = _signs(c) | (_signs(d) << _8)
            low, high = _codes(a, a_max) | (_codes(b, b_max) << _4), _codes(c, c_max) | (_codes(d, d_max) << _4)
            tile_words[tile, _CODES_AT + at] = low | (high << _8)
            escaped |= _escaped(low | (high << _8))
        tiles[tile, 4:16] = 0
        count = _escape_places(tile_words[tile], places) if escaped else 0
        for rank in range(min(count, ESCAPES_MAX)):
            tiles[tile, 4 + rank] = (values[tile, places[rank]] >> 7) & 0xFF
        fits[tile] = count <= ESCAPES_MAX


@njit(nogil=True)
def _unpack(tiles: Any, tile_words: Any, values: Any, value_words: Any) -> None:
    places = np.empty(ESCAPES_MAX, np.int64)
    for tile in range(len(tiles)):
        a_max, b_max = _WORD(tiles[tile, 0]), _WORD(tiles[tile, 1])
        c_max, d_max = _WORD(tiles[tile, 2]), _WORD(tiles[tile, 3])
        escaped = _WORD(0)
        for at in range(_WORDS):
            codes = tile_words[tile, _CODES_AT + at]
            ab, cd = tile_words[tile, _SIGNS_AT + at], tile_words[tile, _SIGNS_AT + _WORDS + at]
            value_words[tile, at] = _values(ab, codes & _CODES, a_max)
            value_words[tile, at + _WORDS] = _values(ab >> _8, (codes >> _4) & _CODES, b_max)
            value_words[tile, at + 2 * _WORDS] = _values(cd, (codes >> _8) & _CODES, c_max)
            value_words[tile, at + 3 * _WORDS] = _values(cd >> _8, (codes >> _12) & _CODES, d_max)
            escaped |= _escaped(codes)
        count = _escape_places(tile_words[tile], places) if escaped else 0
        for rank in range(min(count, ESCAPES_MAX)):
            values[tile, places[rank]] |= np.uint16(tiles[tile, 4 + rank]) << 7
