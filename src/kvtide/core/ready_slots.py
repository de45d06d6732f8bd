"""How many host slots can be used by now: as many as every rank has, of the memory that there is at the moment."""

from __future__ import annotations

from kvtide.core.messages import Pool, Report


class ReadySlots:
    """What each rank has said. When there is other memory, none of it is ready."""

    def __init__(self, ranks: int, slots: int) -> None:
        self._slots = [slots] * ranks
        self._life = 0

    def heard(self, report: Report, pool: Pool | None) -> int | None:
        """Take a report; return how many slots every rank has, if it says anything about these."""
        life = 0 if pool is None else pool.life
        if life != self._life:
            self._life, self._slots = life, [0] * len(self._slots)
        if report.slots_ready is None or report.life != life or not 0 <= report.rank < len(self._slots):
            return None
        # Reports may come late, or twice: what is ready stays so for a life.
        self._slots[report.rank] = max(self._slots[report.rank], report.slots_ready)
        return min(self._slots)
