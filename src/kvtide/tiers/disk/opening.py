"""Opening a disk tier."""

from __future__ import annotations

import logging
import time

from kvtide.errors import ConfigError
from kvtide.tiers.config import TierConfig
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.disk.file_io import IoMode, probe
from kvtide.tiers.disk.layout import bytes_needed, segment_layout
from kvtide.tiers.disk.manifests import note_namespace
from kvtide.tiers.disk.moving_in import move_in
from kvtide.tiers.disk.options import DiskConfig
from kvtide.tiers.disk.segments import Segments
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.record import Sealer
from kvtide.units import size_text

_log = logging.getLogger(__name__)


def open_tier(config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> QueuedTier:
    """Open the tier for the namespace's rank."""
    assert isinstance(config, DiskConfig)
    backend = open_backend(config, namespace, slot_bytes_max)
    return QueuedTier(backend, threads=config.threads, name=f"disk-{config.index}")


def open_backend(config: DiskConfig, namespace: Namespace, slot_bytes_max: int) -> DiskBackend:
    """Open the store of the namespace's rank: its calls block."""
    share_bytes = config.size // namespace.world
    layout = segment_layout(share_bytes, slot_bytes_max)
    if layout is None:
        needed = bytes_needed(slot_bytes_max) * namespace.world
        raise ConfigError(f"{config.option}.size", config.size, f"at least {needed} bytes, for one block on each rank")
    cipher = config.cipher()
    begin_s = time.monotonic()
    folder, lock = move_in(f"{config.option}.path", config.path, namespace.rank, namespace.world, share_bytes)
    try:
        mode = probe(folder) if config.io == "auto" else IoMode(config.io)
        segments = Segments(folder, namespace.digest, layout, share_bytes, mode)
        differences = note_namespace(folder, namespace, segments.namespaces)
        sealer = Sealer(namespace.digest, cipher, where=str(folder))
        backend = DiskBackend(segments, sealer, lock, budget_bytes=share_bytes, mode=mode)
    except OSError as error:
        lock.close()
        raise ConfigError(f"{config.option}.path", str(config.path), f"a folder that can be used ({error})") from error
    except BaseException:
        lock.close()
        raise
    namespace.tell_differences(str(folder), differences)
    _log.info(
        "kvtide: disk tier in %s: %d blocks found in %.2f s, %s I/O, at most %s",
        folder,
        backend.records,
        time.monotonic() - begin_s,
        mode.value,
        size_text(share_bytes),
    )
    return backend
