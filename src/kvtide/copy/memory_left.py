"""How much memory this process can still take: of the machine, and in every control group around it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvtide.units import size_text


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """So many bytes, and who says so."""

    nbytes: int
    source: str
    """Continues "the bytes that …"."""

    @property
    def expected(self) -> str:
        """What to ask for instead, for a `ConfigError`."""
        exactly, roughly = f"{self.nbytes} bytes", size_text(self.nbytes)
        return f"at most the {exactly}{f' ({roughly})' if roughly != exactly else ''} that {self.source}"


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a control group may use, and uses."""

    nbytes: int
    used: int
    file: Path


@dataclass(frozen=True, slots=True)
class _Version:
    """How a version of control groups names what it knows of a group's memory."""

    limits: tuple[str, ...]
    usage: str
    prefix: str
    """Of the lines in `memory.stat` that count the groups below too, as usage does."""


_V1 = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")
_V2 = _Version(("memory.max", "memory.high"), "memory.current", "")
"""Over `memory.high` nobody is killed, but what cannot be reclaimed makes the process crawl."""


_OWN_GROUP = re.compile(r"(?P<number>\d+):(?P<controllers>[^:]*):(?P<path>/.*)")
"""A line of /proc/self/cgroup. In version 2 the number is 0."""
_MOUNT = re.compile(r"\S+ \S+ \S+ (?P<top>\S+) (?P<place>\S+) (?:\S+ )+- (?P<kind>cgroup2?) \S+ (?P<options>\S+)")
"""A line of /proc/self/mountinfo: the group `top` is what is seen at `place`."""


def memory_left(root: Path = Path("/")) -> MemoryLeft:
    """Return the least that the machine and the control groups have left. `root` is where /proc and /sys are."""
    of_groups = [
        MemoryLeft(max(0, limit.nbytes - limit.used), f"are left of the {size_text(limit.nbytes)} in {limit.file}")
        for limit in _limits(root)
    ]
    return min([_left_of_machine(root), *of_groups], key=lambda left: left.nbytes)


def memory_limit(root: Path = Path("/")) -> int:
    """Return how much there is for this process and all beside it, used or not."""
    return min([_physical_bytes(), *(limit.nbytes for limit in _limits(root))])


def _left_of_machine(root: Path) -> MemoryLeft:
    for line in _lines(root / "proc/meminfo"):
        name, _, size = line.partition(":")
        available = _number(size.replace("kB", ""))
        if name == "MemAvailable" and available is not None:
            return MemoryLeft(available * 1024, "this machine has left")
    return MemoryLeft(_physical_bytes(), "this machine has")


def _physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limits(root: Path) -> Iterator[_Limit]:
    """Yield each limit of each group. Groups at the top, and those without the controller, have none.

    Usage counts the page cache, which the kernel drops before it kills anybody. So it does not count here, as it does
    not in MemAvailable: else an engine could not start again after the weights of its model were read.
    """
    for directory, version in _groups(root):
        stat = dict(line.split(" ", 1) for line in _lines(directory / "memory.stat") if " " in line)
        cache = sum(_number(stat.get(version.prefix + name)) or 0 for name in ("inactive_file", "active_file"))
        used = max(0, (_number(_read(directory / version.usage)) or 0) - cache)
        texts = [(directory / name, _read(directory / name)) for name in version.limits]
        # In a container the groups above may be out of sight. Version 1 still says what they allow.
        texts.append((directory / "memory.stat", stat.get("hierarchical_memory_limit")))
        for file, text in texts:
            nbytes = _number(text)
            if nbytes is not None:
                yield _Limit(nbytes, used, file)


def _groups(root: Path) -> Iterator[tuple[Path, _Version]]:
    """Yield the directories of this process's groups and of all groups above them that can be seen."""
    mounts = list(filter(None, map(_MOUNT.fullmatch, _lines(root / "proc/self/mountinfo"))))
    for own in filter(None, map(_OWN_GROUP.fullmatch, _lines(root / "proc/self/cgroup"))):
        for mount in mounts:
            if own["number"] == "0" and mount["kind"] == "cgroup2":
                version = _V2
            elif "memory" in own["controllers"].split(",") and "memory" in mount["options"].split(","):
                version = _V1
            else:
                continue
            place = root / _unescaped(mount["place"]).lstrip("/")
            for directory in _levels(_parts(own["path"]), _parts(_unescaped(mount["top"])), place):
                yield directory, version


def _unescaped(path: str) -> str:
    """Read a path as mountinfo writes it, with spaces as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _levels(path: tuple[str, ...], top: tuple[str, ...], place: Path) -> Iterator[Path]:
    """Yield the directories of a group and those above it, in a mount at `place` whose top is the group `top`."""
    below = path[len(top) :]
    if path[: len(top)] == top and ".." not in below:
        for depth in range(len(below), -1, -1):
            yield place.joinpath(*below[:depth])
    elif all(part == ".." for part in top):
        # Outside of the namespace names are not told. What is mounted is above us, or what was made for this container.
        yield place


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _number(text: str | None) -> int | None:
    """Read a number; None if there is none, as in the word "max"."""
    return int(text) if text is not None and text.strip().isdecimal() else None


def _lines(file: Path) -> list[str]:
    return (_read(file) or "").splitlines()


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return None
