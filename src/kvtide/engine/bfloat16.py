"""KV in bfloat16, as bits: numpy has no such type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtide.engine.arrays import Floats

Bits = npt.NDArray[np.uint16]


def narrowed(values: Floats) -> Bits:
    """Return the nearest values of bfloat16; of two that are as near, the even one."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits: Bits) -> Floats:
    """Return the values of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
