"""Reads a model's file in the format GGUF, as much of it as one small model needs. Needs nothing but numpy."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Kinds of numbers, and what `struct` calls them."""


class Gguf:
    """What a GGUF file says about a model (`about`), and its matrices."""

    def __init__(self, file: Path) -> None:
        self._bytes = np.memmap(file, dtype=np.uint8, mode="r")
        self._at = 8
        tensors, facts = self._numbers("QQ")
        self.about: dict[str, Any] = {}
        for _ in range(facts):
            name = self._text()
            self.about[name] = self._value(self._numbers("I")[0])
        self._where = dict(self._tensor() for _ in range(tensors))
        self._data_at = self._at + -self._at % 32

    def __getitem__(self, name: str) -> Floats:
        """Return a tensor in float32, its last axis the one that lies densely."""
        shape, kind, offset = self._where[name]
        count, begin = int(np.prod(shape)), self._data_at + offset
        flat: npt.NDArray[Any]
        if kind == 0:  # F32
            flat = self._bytes[begin : begin + 4 * count].view(np.float32).copy()
        elif kind == 3:  # Q4_1: a scale, a minimum and 32 numbers of 4 bits
            rows = self._bytes[begin : begin + count // 32 * 20].reshape(-1, 20)
            scale, least = rows[:, :4].copy().view(np.float16).astype(np.float32).T[:, :, None]
            flat = np.hstack([rows[:, 4:] & 15, rows[:, 4:] >> 4]) * scale + least
        elif kind == 8:  # Q8_0: a scale and 32 numbers of 8 bits
            rows = self._bytes[begin : begin + count // 32 * 34].reshape(-1, 34)
            flat = rows[:, 2:].view(np.int8) * rows[:, :2].copy().view(np.float16).astype(np.float32)
        else:
            raise ValueError(f"tensor {name} is of kind {kind}, which is not read here")
        return flat.astype(np.float32, copy=False).reshape(shape)

    def _numbers(self, kinds: str) -> tuple[Any, ...]:
        begin, self._at = self._at, self._at + struct.calcsize("<" + kinds)
        return struct.unpack("<" + kinds, self._bytes[begin : self._at].tobytes())

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        self._at += length
        return bytes(self._bytes[self._at - length : self._at]).decode()

    def _value(self, kind: int) -> Any:
        if kind == 8:
            return self._text()
        if kind == 9:
            inner, count = self._numbers("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._numbers(_NUMBERS[kind])[0]

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._text()
        (axes,) = self._numbers("I")
        shape = self._numbers("Q" * axes)
        kind, offset = self._numbers("IQ")
        return name, (shape[::-1], kind, offset)
