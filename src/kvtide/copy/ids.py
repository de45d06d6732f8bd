"""The blocks and slots of a transfer as arrays, each of them checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvtide.core.messages import Copy
from kvtide.errors import CopyError

Ids = npt.NDArray[np.int64]


def checked_ids(copy: Copy, *, blocks: int, slots: int) -> tuple[Ids, Ids]:
    """Return a transfer's blocks and slots. Raises CopyError where one does not exist."""
    if len(copy.blocks) != len(copy.slots):
        raise CopyError(f"{len(copy.blocks)} blocks for {len(copy.slots)} slots")
    return _checked("block", copy.blocks, blocks), _checked("slot", copy.slots, slots)


def _checked(what: str, ids: Sequence[int], count: int) -> Ids:
    """Return `ids` as an index. Negative ones are errors too: numpy would count them from the end."""
    index = np.frombuffer(struct.pack(f"{len(ids)}q", *ids), dtype=np.int64)  # three times faster than np.array
    if len(index):
        for worst in (int(index.min()), int(index.max())):
            if not 0 <= worst < count:
                raise CopyError(f"{what} {worst} does not exist: there are {count}")
    return index
