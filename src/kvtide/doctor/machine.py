"""What checks read of this machine: files, the output of commands, the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvtide.doctor.processes import run_program

COMMAND_TIMEOUT_S = 25.0
"""Where nothing keeps the driver loaded, nvidia-smi wakes every GPU first, for a second or two each."""


def output_of(command: Sequence[str]) -> str | None:
    """Run a program and return what it prints. None: there is none of that name, or it failed."""
    try:
        code, output = run_program(command, COMMAND_TIMEOUT_S)
    except OSError:  # `TimeoutError` is one
        return None
    return None if code else output


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine to look at: this one, unless somebody says otherwise."""

    root: Path = Path("/")
    """Where /proc and /sys are."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    output_of: Callable[[Sequence[str]], str | None] = output_of
    packages: Sequence[str] = field(default_factory=lambda: tuple(sys.path))
    """Where Python looks for packages."""

    def read(self, path: str) -> str | None:
        """Return a file of /proc or /sys, without blanks at its ends. None: it cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    def meminfo(self, name: str) -> int | None:
        """Return a number of /proc/meminfo: bytes, where it is in kB."""
        for line in (self.read("proc/meminfo") or "").splitlines():
            key, _, value = line.partition(":")
            words = value.split()
            if key == name and words and words[0].isdecimal():
                return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return None
