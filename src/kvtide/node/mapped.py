"""Memory that came, or goes, as a descriptor, mapped: slots of one size, shared with whoever else has it."""

from __future__ import annotations

import fcntl
import os

from kvtide.copy.shared_arena import SharedArena
from kvtide.errors import ConfigError
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size never changes: who reads where memory has ended is killed."""


class MappedArena(SharedArena):
    """An arena of a node. The descriptor is not needed any more once it is mapped.

    `follows`: the node makes the pages, one after the other, and they must not be touched before. They would count for
    the container of an engine, and could not become huge ones any more once they are pinned.

    Raises:
        BadFrame: the memory is not what its description says.

    """

    def __init__(self, descriptor: int, description: ArenaDescription, *, follows: bool = False) -> None:
        _check(descriptor, description)
        self.description = description
        self._followed: int | None = None
        self._pages_there = description.front_bytes
        try:
            super().__init__(
                description.slots,
                description.slot_bytes,
                row_bytes=description.row_bytes,
                file=descriptor,
                file_bytes=description.nbytes,
            )
        except ConfigError as error:
            raise BadFrame(f"memory that cannot be mapped ({error})") from error
        if follows:
            try:
                self._followed = os.dup(descriptor)
            except OSError as error:
                self.close()
                raise BadFrame(f"memory that cannot be followed ({error.strerror})") from error

    def pages_there(self) -> int:
        """See `HostArena`. What was found before is not looked at again. Reserved huge pages have no holes."""
        if self._followed is None:
            return super().pages_there()
        there = self._pages_there  # once: another thread may find more meanwhile
        if there < self.description.nbytes:
            self._pages_there = there = os.lseek(self._followed, there, os.SEEK_HOLE)
        return there - self.description.front_bytes

    def close(self) -> None:
        """See `HostArena`."""
        super().close()
        if self._followed is not None:
            os.close(self._followed)
            self._followed = None


def _check(descriptor: int, description: ArenaDescription) -> None:
    slots_bytes = description.slots * description.slot_bytes
    if not 0 < slots_bytes <= description.nbytes - description.front_bytes:
        raise BadFrame(f"an arena of {description.nbytes} bytes with {slots_bytes} bytes of slots")
    try:
        size, seals = os.fstat(descriptor).st_size, fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadFrame(f"a descriptor that is no memory ({error.strerror})") from error
    if size != description.nbytes:
        raise BadFrame(f"an arena of {size} bytes instead of {description.nbytes}")
    if seals & SEALS != SEALS:
        raise BadFrame("an arena whose size can change")
