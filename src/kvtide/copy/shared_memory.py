"""Memory that several processes of one machine map: made by one of them, found by the others in its /proc.

It has no name in any file system, so nothing is left behind, no limit of /dev/shm applies, and it is gone with the last
process that has it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kvtide.copy.arena import refuse_too_much
from kvtide.errors import ConfigError, CopyError


@dataclass(frozen=True, slots=True)
class Offer:
    """Where other processes find the memory, as long as the one that made it keeps the descriptor open."""

    process: int
    descriptor: int
    identity: tuple[int, int]
    """Device and inode. Process numbers of another machine or container may be in use here too."""
    nbytes: int


def make(nbytes: int) -> Offer:
    """Make memory, or say that there is too little. A page takes real memory once it is touched."""
    refuse_too_much(nbytes)
    try:
        descriptor = os.memfd_create("kvtide", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            about = os.fstat(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, OverflowError) as error:
        raise ConfigError("host", nbytes, f"memory that this machine can give ({error})") from error
    return Offer(os.getpid(), descriptor, (about.st_dev, about.st_ino), nbytes)


def find(offer: Offer) -> int:
    """Return a descriptor of another process's memory. Raises CopyError where that is out of reach."""
    try:
        descriptor = os.open(f"/proc/{offer.process}/fd/{offer.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise CopyError(f"the memory of process {offer.process} cannot be opened ({error})") from error
    about = os.fstat(descriptor)
    if ((about.st_dev, about.st_ino), about.st_size) != (offer.identity, offer.nbytes):
        os.close(descriptor)
        raise CopyError(f"process {offer.process} is not here: it is on another machine, or in another container")
    return descriptor
