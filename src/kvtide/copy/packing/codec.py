"""What packs tiles from memory into memory: compiled code, or the reference."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvtide.copy.packing.format import TILE_BYTES, TILE_VALUES, Bytes, Values, pack_tiles, unpack_tiles


class Codec(Protocol):
    """Packs and unpacks rows of tiles."""

    def pack_into(self, values: Values, tiles: Bytes) -> npt.NDArray[np.bool_]:
        """Pack tiles into memory that is there; return which of them fit."""

    def unpack_into(self, tiles: Bytes, values: Values) -> None:
        """Unpack tiles into memory that is there."""


class Reference:
    """The format's definition. A hundred times slower than a copy."""

    def pack_into(self, values: Values, tiles: Bytes) -> npt.NDArray[np.bool_]:
        """See `Codec`."""
        tiles[:], fits = pack_tiles(values)
        return fits

    def unpack_into(self, tiles: Bytes, values: Values) -> None:
        """See `Codec`."""
        values[:] = unpack_tiles(tiles)


def has_compiled() -> bool:
    """Whether there is what compiled code needs. Imports nothing: see `compiled`."""
    return importlib.util.find_spec("numba") is not None


def compiled() -> Codec:
    """Return compiled code; the first use of each of its functions takes seconds (`ready`).

    To be called in a thread of our own when the engine is up: vLLM's CPU build does not start where numba was
    imported before.
    """
    module: Any = importlib.import_module("kvtide.copy.packing.compiled")
    codec: Codec = module
    return codec


def ready(codec: Codec) -> Codec:
    """Use each of the functions once, so that compiling them is over."""
    values, tiles = np.zeros((1, TILE_VALUES), np.uint16), np.zeros((1, TILE_BYTES), np.uint8)
    codec.pack_into(values, tiles)
    codec.unpack_into(tiles, values)
    return codec
