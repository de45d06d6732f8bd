"""Host blocks of the embedded engine, packed (the option `packing`)."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from kvtide.copy import CopyEngine, DeviceCache, HostArena, ThreadedCopyEngine
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.codec import Reference
from kvtide.copy.unpacked import UnpackedRows, packed_bytes_with_row, rows_for
from kvtide.core.config import Geometry
from kvtide.engine.config import EngineConfig
from kvtide.errors import ConfigError
from kvtide.options import parse_choice


def take_packing(config: EngineConfig, options: MutableMapping[str, object], *, at_node: bool) -> bool:
    """Take the option out of the others, and return whether blocks are packed. Raises `ConfigError`.

    There is no `auto`: that is a question of speed, and this engine computes more slowly than anything packs.
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


def packing_copy_engine(device: DeviceCache, slots: int) -> tuple[CopyEngine, list[HostArena]]:
    """Make what packs, and the host memory that it fills: slots, and the place for blocks that do not pack."""
    arena = HostArena(slots, whole_tiles_bytes([device.block_bytes]))
    rows = HostArena(rows_for(slots), device.block_bytes)
    return ThreadedCopyEngine(device, arena, unpacked=UnpackedRows(rows, slots), codec=Reference), [arena, rows]
