"""Host blocks of the embedded engine, packed (the option `packing`)."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import replace

from kvtide.copy import CopyEngine, DeviceCache, HostArena, ThreadedCopyEngine
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.codec import Codec, Reference, compiled, has_compiled, ready
from kvtide.copy.unpacked import UnpackedRows, packed_bytes_with_row, rows_for
from kvtide.core.config import Geometry
from kvtide.engine.config import EngineConfig
from kvtide.errors import ConfigError
from kvtide.options import parse_choice

_LOG = logging.getLogger(__name__)


def take_packing(config: EngineConfig, options: MutableMapping[str, object], *, at_node: bool) -> bool:
    """Take the option out of the others, and return whether blocks are packed. Raises `ConfigError`.

    There is no `auto`: that is a question of speed, and this engine is there to try things out.
    """
    asked = parse_choice("packing", options.pop("packing", "off"), ("on", "off"))
    if asked == "off":
        return False
    if config.kv_dtype != "bfloat16":
        raise ConfigError("packing", asked, f"kv_dtype='bfloat16' in EngineConfig: {config.kv_dtype} does not pack")
    if at_node:
        raise ConfigError("packing", asked, "off beside node, where this engine does not pack")
    whole_tiles_bytes([config.fragment_bytes])
    return True


def with_packed_slots(geometry: Geometry) -> Geometry:
    """Return the same with host slots of packed blocks."""
    return replace(geometry, host_block_bytes=packed_bytes_with_row(geometry.block_bytes))


def codec() -> Codec:
    """Return what packs, ready to be used, and say in the log what that is: compiled code, where numba can be used.

    Compiling takes seconds, once in a process. That is when an engine is made, so that no request waits for it.
    """
    if has_compiled():
        try:
            compiled_code = ready(compiled())
        except ImportError as error:
            _LOG.info("packing is on, by the reference in numpy, which is slow: numba cannot be used (%s)", error)
        else:
            _LOG.info("packing is on, by compiled code (numba)")
            return compiled_code
    else:
        _LOG.info("packing is on, by the reference in numpy, which is slow; it is compiled where numba is installed")
    return Reference()


def packing_copy_engine(device: DeviceCache, slots: int, packer: Codec) -> tuple[CopyEngine, list[HostArena]]:
    """Make what packs, and the host memory that it fills: slots, and the place for blocks that do not pack."""
    arena = HostArena(slots, whole_tiles_bytes([device.block_bytes]))
    rows = HostArena(rows_for(slots), device.block_bytes)
    return ThreadedCopyEngine(device, arena, unpacked=UnpackedRows(rows, slots), codec=lambda: packer), [arena, rows]
