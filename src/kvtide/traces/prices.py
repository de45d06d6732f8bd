"""What memory costs and what it saves, in dollars per hour."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
_CENTS_FROM = 0.1
GIB_HOUR = 0.0002
GIB_HOUR_HOW = "an estimate: about $6 for a GiB of server memory (DDR5, 2025), written off in 4 years, and its power"
GPU_HOUR_HOW = "an estimate: about what public clouds asked for one on demand in 2025"


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per hour."""

    gpu_hour: float
    gib_hour: float

    @property
    def gpu_second(self) -> float:
        """Dollars for a second of one GPU."""
        return self.gpu_hour / 3600

    def memory(self, size: float) -> float:
        """Return what so many bytes of host memory cost in an hour."""
        return self.gib_hour * size / GIB


def dollars_text(dollars: float) -> str:
    """Return an amount for people."""
    return f"${dollars:.2f}" if dollars >= _CENTS_FROM else f"${dollars:.2g}"
