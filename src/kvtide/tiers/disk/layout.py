"""How a budget is cut into segment files, and a segment file into its parts.

    first page        table of record headers         bodies, each beginning on a page
    whose it is       128 bytes for each record       in the order of their headers

The headers lie together, so that an index is rebuilt by reading a thousandth of the store. A body begins and ends
where direct I/O can reach it, without a page for its header in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.tiers.disk.aligned import PAGE, pages
from kvtide.tiers.record import HEADER_BYTES

SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX = 16 << 20, 128 << 20
SEGMENT_BLOCKS_MIN = 16
SEGMENTS_WANTED, SEGMENTS_AT_LEAST = 1024, 32
"""A segment is what is evicted at once. A thousandth of the budget costs few hits (docs/engineers/lab-log.md); segments
too small to be written and read at full speed are made only where there would be fewer than 32."""
OVERHEAD_BYTES = 64 << 10
"""Of each rank's share: folders, locks, manifests and their temporary files."""
FILE_OVERHEAD_BYTES = PAGE
"""Of each segment: a file system's list of its extents."""
CAPACITY_MAX = 1 << 20
"""Records in a segment; locations are counted on it."""


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Where things are in a segment file."""

    capacity: int
    """Records that its table has room for."""
    size: int
    """Bytes of the file."""

    @property
    def table_bytes(self) -> int:
        """Bytes of the table, in whole pages."""
        return pages(self.capacity * HEADER_BYTES) * PAGE

    @property
    def first_page(self) -> int:
        """The page where bodies begin."""
        return 1 + self.table_bytes // PAGE

    @property
    def last_page(self) -> int:
        """The page behind the last one."""
        return self.size // PAGE

    @property
    def cost_bytes(self) -> int:
        """What a segment takes of the budget."""
        return self.size + FILE_OVERHEAD_BYTES

    def sound(self) -> bool:
        """Say whether these numbers, read from a file, can be true."""
        return 0 < self.capacity <= CAPACITY_MAX and not self.size % PAGE and self.first_page < self.last_page


def segment_layout(budget_bytes: int, slot_bytes: int) -> SegmentLayout | None:
    """Cut one rank's share of the budget. None: not even one block fits."""
    room = budget_bytes - OVERHEAD_BYTES
    body_pages = max(1, pages(slot_bytes))
    least = max(SEGMENT_BYTES_MIN, SEGMENT_BLOCKS_MIN * body_pages * PAGE)
    wanted = max(room // SEGMENTS_WANTED, min(least, room // SEGMENTS_AT_LEAST))
    wanted = min(SEGMENT_BYTES_MAX, wanted) - FILE_OVERHEAD_BYTES
    records = max(1, min(CAPACITY_MAX, wanted // (body_pages * PAGE + HEADER_BYTES)))
    while True:
        bare = SegmentLayout(records, PAGE)
        layout = SegmentLayout(records, (bare.first_page + records * body_pages) * PAGE)
        if layout.size <= wanted or records == 1:
            return layout if layout.cost_bytes <= room else None
        records -= 1


def bytes_needed(slot_bytes: int) -> int:
    """Return the smallest share of a rank in which a block fits."""
    return OVERHEAD_BYTES + SegmentLayout(1, (2 + max(1, pages(slot_bytes))) * PAGE).cost_bytes
