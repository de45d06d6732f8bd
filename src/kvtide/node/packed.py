"""Numbers, keys and slots as bytes, and back. What cannot be read is a `BadFrame`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from struct import Struct, error, pack
from typing import Any, overload

from kvtide.node.errors import BadFrame

_FEW = 32
"""More than it takes to find one by halving."""
_LEFT_OUT = b""
"""Nobody has it: keys have a length."""
KEYS_MAX = 1 << 19
"""In one frame. A prompt of a million tokens, of a model with eight groups, has as many."""
_COUNT = Struct("<I")
_KEYS = Struct("<IIB")


class Keys(Sequence[bytes]):
    """Keys of one length in one piece of bytes: what nobody looks at costs nothing. Whoever looks at many gets all.

    `first` keys before them are left out: to be counted, and looked at in vain.
    """

    __slots__ = ("_begin", "_data", "_key_bytes", "_keys", "_len", "_looked_at", "first")

    def __init__(self, data: bytes, begin: int, key_bytes: int, count: int, first: int = 0) -> None:
        self._data = data
        self._begin = begin
        self._key_bytes = key_bytes
        self._len = first + count
        self._keys: tuple[bytes, ...] | None = None
        """All of them."""
        self._looked_at = 0
        """One by one."""
        self.first = first

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Keys: ...
    def __getitem__(self, index: int | slice) -> bytes | Keys:
        if isinstance(index, slice):
            first, last, _ = index.indices(self._len)
            last = max(first, last)
            left_out = min(max(self.first, first), last)
            return Keys(self._data, self._at(left_out), self._key_bytes, last - left_out, left_out - first)
        if not -self._len <= index < self._len:
            raise IndexError(index)
        index %= self._len
        if index < self.first:
            return _LEFT_OUT
        if self._keys is not None:
            return self._keys[index - self.first]
        self._looked_at += 1
        if self._looked_at > _FEW:
            return self._all()[index - self.first]
        return self._data[self._at(index) : self._at(index + 1)]

    def __iter__(self) -> Iterator[bytes]:
        return chain(repeat(_LEFT_OUT, self.first), self._all())

    def _all(self) -> tuple[bytes, ...]:
        if self._keys is None:
            # All in one call: a call, a slice or a tuple for each would take three times as long.
            form = Struct(f"{self._key_bytes}s" * (self._len - self.first))
            self._keys = form.unpack_from(self._data, self._begin)
        return self._keys

    def _at(self, index: int) -> int:
        """Where a key begins that is not left out."""
        return self._begin + max(0, index - self.first) * self._key_bytes


def pack_keys(keys: Sequence[bytes], first: int = 0) -> bytes:
    """Return keys, which are of one length."""
    key_bytes = len(keys[0]) if keys else 0
    return _KEYS.pack(first, len(keys), key_bytes) + b"".join(keys)


def pack_slots(slots: Sequence[int]) -> bytes:
    """Return slots, or positions. How many there are is told before."""
    return pack(f"<{len(slots)}i", *slots)


class Reader:
    """Reads a body from its beginning to its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._keys_left = KEYS_MAX

    def numbers(self, form: Struct) -> tuple[Any, ...]:
        """Return what a struct says."""
        try:
            values = form.unpack_from(self._body, self._at)
        except error:
            raise BadFrame("a frame that ends too early") from None
        self._at += form.size
        return values

    def count(self) -> int:
        """Return how many of something follow. Each takes at least one byte."""
        (count,) = self.numbers(_COUNT)
        if count > len(self._body) - self._at:
            raise BadFrame(f"a frame that promises {count} of something")
        return int(count)

    def keys(self) -> Keys:
        """Return keys, all of them."""
        keys = self.last_keys()
        if keys.first:
            raise BadFrame(f"{keys.first} keys that are left out")
        return keys

    def last_keys(self) -> Keys:
        """Return keys; how many are left out before them may be up to two thousand million."""
        first, count, key_bytes = self.numbers(_KEYS)
        if count and not key_bytes:
            raise BadFrame("keys without a length")
        self._keys_left -= count
        if self._keys_left < 0:
            raise BadFrame(f"a frame with more than {KEYS_MAX} keys")
        begin = self._at
        if begin + count * key_bytes > len(self._body) or first >= 1 << 31:
            raise BadFrame("a frame that ends too early")
        self._at += count * key_bytes
        return Keys(self._body, begin, key_bytes, count, first)

    def slots(self, count: int) -> list[int]:
        """Return so many slots, or positions."""
        return list(self.numbers(Struct(f"<{count}i"))) if count else []

    def end(self) -> None:
        """There must be nothing more."""
        if self._at != len(self._body):
            raise BadFrame("a frame that goes on after its end")
