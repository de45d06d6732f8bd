"""What a lane's transfers are made of."""

from __future__ import annotations

from typing import NamedTuple

from kvtide.copy.cuda.flags import Flags
from kvtide.copy.cuda.gpu import Event, Mover, PackedMover
from kvtide.copy.cuda.lane_memory import Index
from kvtide.copy.ids import Ids


class Issued(NamedTuple):
    """The events around a transfer's copies, and what else is known of it."""

    begin: Event
    end: Event
    flags: Flags | None = None
    """Of a store that packs: which blocks do not fit."""
    rows: int = 0
    """How many of its blocks are not packed."""
    not_kept: tuple[int, ...] | None = None
    """Of a store that was not tried to be packed: slots without a row, of whose blocks nothing was copied."""


class Pairs(NamedTuple):
    """Some pairs of an index."""

    of: Index
    first: int
    pairs: int


class HostRows(NamedTuple):
    """Where blocks are on the host, and how they are there: row `r` is at `address + begin + r * row_bytes`."""

    address: int
    """Where memory was begun to be pinned."""
    row_bytes: int
    move: Mover | PackedMover
    packed: bool
    begin: int = 0


Part = tuple[HostRows, Ids, Ids]
"""Blocks, and the rows that they belong to."""
