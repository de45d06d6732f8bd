"""Memory that came, or goes, as a descriptor, mapped: slots of one size, shared with whoever else has it."""

from __future__ import annotations

import fcntl
import os

from kvtide.copy import HostArena
from kvtide.errors import ConfigError
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size never changes: who reads where memory has ended is killed."""


class MappedArena(HostArena):
    """An arena of a node. The descriptor is not needed any more once it is mapped.

    Raises:
        BadFrame: the memory is not what its description says.

    """

    def __init__(self, descriptor: int, description: ArenaDescription) -> None:
        _check(descriptor, description)
        self.description = description
        try:
            super().__init__(description.slots, description.slot_bytes, file=descriptor, file_bytes=description.nbytes)
        except ConfigError as error:
            raise BadFrame(f"memory that cannot be mapped ({error})") from error


def _check(descriptor: int, description: ArenaDescription) -> None:
    used = description.slots * description.slot_bytes
    if not 0 < used <= description.nbytes:
        raise BadFrame(f"an arena of {description.nbytes} bytes with {used} bytes of slots")
    try:
        size, seals = os.fstat(descriptor).st_size, fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadFrame(f"a descriptor that is no memory ({error.strerror})") from error
    if size != description.nbytes:
        raise BadFrame(f"an arena of {size} bytes instead of {description.nbytes}")
    if seals & SEALS != SEALS:
        raise BadFrame("an arena whose size can change")
