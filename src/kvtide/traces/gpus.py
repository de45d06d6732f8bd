"""GPUs by name: the numbers of their data sheets from which rates and sizes are derived."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtide.errors import ConfigError
from kvtide.options import one_of

DEFAULT_GPU = "h200"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """What NVIDIA says, and about what public clouds ask."""

    name: str
    tflops: float
    """Dense, in 16 bits."""
    memory_bytes: int
    """As `nvidia-smi` tells it."""
    memory_gb_per_s: float
    link_gb_per_s: float
    """PCIe, one way."""
    dollars_per_hour: float | None
    """Of one GPU: about what public clouds asked on demand in 2025, where offers differ by a factor of two. None: who
    plans has to say."""
    sheet: str = ""
    """Where these numbers come from, if not from NVIDIA."""

    @property
    def told_by(self) -> str:
        """Where these numbers come from."""
        return self.sheet or f"NVIDIA's data sheet of the {self.name}"


GPUS: dict[str, Gpu] = {
    "h200": Gpu("H200 SXM", 989, 143_771 * _MIB, 4800, 64, 3.5),
    "h100": Gpu("H100 SXM", 989, 81_559 * _MIB, 3350, 64, 3.0),
    "a100": Gpu("A100 80GB SXM", 312, 81_920 * _MIB, 2039, 32, 1.8),
    "l4": Gpu("L4", 121, 23_034 * _MIB, 300, 32, 0.7),
}
"""By the name that `--gpu` takes."""


def gpu_named(name: str) -> Gpu:
    """Return a GPU: by its name, or as `nvidia-smi` tells it, with other words. Capitals do not matter."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    for known, gpu in GPUS.items():
        if known in words:
            return gpu
    given = "--device, --prefill, --decode and --link (kvtide plan: --gpu-hour, too)"
    other = f"for another GPU leave --gpu out, and give {given}"
    raise ConfigError("--gpu", name, f"{one_of(name, GPUS)}; {other}")
