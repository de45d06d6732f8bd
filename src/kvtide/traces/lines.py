"""The lines of a trace: from a file, a pipe or standard input, packed with gzip or not.

A pipe can be read once. So what was looked at to find the format is kept, and comes first when lines are read.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from kvtide.traces.errors import TraceError

STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b"


class Lines:
    """Can be looked at without being used up, and read: files as often as wanted, everything else once."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._standard_input = str(path) == STANDARD_INPUT
        self.name = "standard input" if self._standard_input else str(path)
        self._looked: list[str] = []
        self._rest: Iterator[str] | None = None
        """What is open and was not read yet."""
        self._used_up = False

    def look(self, count: int) -> Sequence[str]:
        """Return the first lines. They are still there for who reads."""
        if self._rest is None:
            self._rest = self._read()
        self._looked += islice(self._rest, max(0, count - len(self._looked)))
        return self._looked

    def __iter__(self) -> Iterator[str]:
        """Yield all lines."""
        looked, rest = self._looked, self._rest
        self._looked, self._rest = [], None
        if rest is None:
            rest = self._read()
        yield from looked
        yield from rest

    def _read(self) -> Iterator[str]:
        if self._used_up:
            raise TraceError(f"{self.name}: it is no file and can be read only once")
        self._used_up = self._standard_input or not self._path.is_file()
        try:
            with self._open() as file:
                packed = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
                for line in gzip.GzipFile(fileobj=file) if packed else file:
                    yield line.decode("utf-8", errors="replace")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            rest = "zcat unpacks what can still be read, for standard input (-)"
            raise TraceError(f"{self.name}: what gzip has packed is cut off or damaged ({error}); {rest}") from None
        except OSError as error:
            raise TraceError(f"{self.name}: {error.strerror or error}") from None

    def _open(self) -> io.BufferedReader:
        if self._standard_input:
            return open(sys.stdin.fileno(), "rb", closefd=False)
        return self._path.open("rb")
