"""Opening a trace: find the format, read line by line, report what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from kvtide.options import did_you_mean
from kvtide.traces.errors import MalformedLine, TraceError
from kvtide.traces.readers import FORMATS, LineReader
from kvtide.traces.record import TraceRequest, checked
from kvtide.traces.tokenizers import BYTES, tokenizer

LOOK_LINES = 1000
"""The format is recognised by one of so many first lines."""
OnSkip = Callable[[int, str], None]
"""Told the number of a line that is skipped, and why."""


@dataclass(slots=True)
class Trace:
    """A file that can be iterated over, as often as wanted. Memory does not grow with its length."""

    path: Path
    block_tokens: int
    strict: bool
    _reader: Callable[[], LineReader]
    _on_skip: OnSkip | None
    skipped: int = field(default=0, init=False)
    """Lines that were skipped in the last pass."""

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests. Lines without meaning are skipped and told about, or fatal if `strict`."""
        reader = self._reader()
        self.skipped = 0
        read = 0
        for line_number, line in enumerate(_lines(self.path), start=1):
            if not line.strip():
                continue
            try:
                request = reader.parse(line)
                if request is None:
                    continue
                request = checked(request, self.block_tokens)
            except MalformedLine as error:
                if self.strict:
                    raise TraceError(f"{self.path}, line {line_number}: {error}") from None
                self.skipped += 1
                if self._on_skip is not None:
                    self._on_skip(line_number, str(error))
                continue
            read += 1
            yield request
        if not read:
            raise TraceError(f"{self.path}: none of its {self.skipped} lines can be read as a request")


def open_trace(
    path: str | Path,
    *,
    trace_format: str = "auto",
    block_tokens: int | None = None,
    tokenizer_name: str = BYTES,
    strict: bool = False,
    on_skip: OnSkip | None = None,
) -> Trace:
    """Return a trace. `block_tokens` is how many tokens a hash stands for, if not what is usual for the format."""
    path = Path(path)
    chosen = _recognise(path) if trace_format == "auto" else _format(trace_format)
    tokenize = tokenizer(tokenizer_name)
    reader = chosen(block_tokens, tokenize)
    return Trace(path, reader.block_tokens, strict, lambda: chosen(block_tokens, tokenize), on_skip)


def _format(name: str) -> type[LineReader]:
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS)
        raise TraceError(f"format {name!r} is not known: {hint}expected auto, {', '.join(FORMATS)}")
    return FORMATS[name]


def _recognise(path: Path) -> type[LineReader]:
    seen = False
    for line in islice(_lines(path), LOOK_LINES):
        if not line.strip():
            continue
        seen = True
        for reader in FORMATS.values():
            if reader.recognises(line):
                return reader
    if not seen:
        raise TraceError(f"{path}: the file is empty")
    raise TraceError(f"{path}: unknown format: expected lines of {', '.join(FORMATS)} (see --format)")


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
