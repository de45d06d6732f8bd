"""Which pages memory can have: huge ones are faster to pin and to copy."""

from __future__ import annotations

import re
from pathlib import Path

from kvtide.copy.arena import HUGE_PAGE_BYTES

_RESERVED = "sys/kernel/mm/hugepages/hugepages-2048kB"
_TRANSPARENT = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


def reserved_bytes(root: Path = Path("/")) -> int:
    """Return how much memory the operator has set aside as huge pages that nobody has taken yet."""
    free, taken = (_number(root / _RESERVED / name) for name in ("free_hugepages", "resv_hugepages"))
    return max(0, free - taken) * HUGE_PAGE_BYTES


def transparent(root: Path = Path("/")) -> bool:
    """Return whether the kernel makes huge pages for shared memory by itself, when it is asked to."""
    return bool(re.search(r"\[(always|within_size|advise|force)\]", _text(root / _TRANSPARENT)))


def how_to(root: Path = Path("/")) -> str:
    """Return what people can do where there are none."""
    return f"`echo advise > {root / _TRANSPARENT}`, or set huge pages aside (vm.nr_hugepages)"


def _number(file: Path) -> int:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
