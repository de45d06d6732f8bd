"""Opening a trace: find the format, read line by line, report what cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvtide.options import did_you_mean
from kvtide.traces.errors import MalformedLine, TraceError
from kvtide.traces.lines import Lines
from kvtide.traces.readers import (
    FORMATS,
    REQUESTS_PER_S,
    WITHOUT_TOKENS,
    LineReader,
    VLLMLogReader,
    looks_like_log,
    required_object,
)
from kvtide.traces.record import TraceRequest, checked
from kvtide.traces.tokenizers import BYTES, tokenizer

LOOK_LINES = 1000
"""The format is recognised by one of so many first lines."""
OnSkip = Callable[[int, str], None]
"""Told the number of a line that is skipped, and why."""


@dataclass(slots=True)
class Trace:
    """Can be iterated over: a file as often as wanted, a pipe once. Memory does not grow with its length."""

    lines: Lines
    block_tokens: int
    strict: bool
    requests_per_s: float
    """How fast requests are taken to come if it does not say when they came."""
    _reader: Callable[[], LineReader]
    _on_skip: OnSkip | None
    skipped_by: Counter[str] = field(default_factory=Counter, init=False)
    """Lines that were skipped in the last pass, by reason."""
    read: int = field(default=0, init=False)
    """Requests that were read in the last pass."""
    untimed: int = field(default=0, init=False)
    """Requests of the last pass whose time is not from the trace."""

    @property
    def skipped(self) -> int:
        """Lines that were skipped in the last pass."""
        return sum(self.skipped_by.values())

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests. Lines without meaning are skipped and told about, or fatal if `strict`."""
        reader = self._reader()
        self.skipped_by.clear()
        self.read = 0
        for line_number, line in enumerate(self.lines, start=1):
            if not line.strip():
                continue
            try:
                request = reader.parse(line)
                if request is None:
                    continue
                request = checked(request, self.block_tokens)
            except MalformedLine as error:
                if self.strict:
                    raise TraceError(f"{self.lines.name}, line {line_number}: {error}") from None
                self.skipped_by[error.reason] += 1
                if self._on_skip is not None:
                    self._on_skip(line_number, str(error))
                continue
            self.read += 1
            self.untimed = reader.untimed
            yield request
        if not self.read:
            raise TraceError(f"{self.lines.name}: {self._nothing(reader)}")

    def _nothing(self, reader: LineReader) -> str:
        """Say why there is no request."""
        if self.skipped:
            whys = ", ".join(f"{why}: {count:,}" for why, count in self.skipped_by.most_common())
            return f"no line of it can be read as a request ({whys})"
        return WITHOUT_TOKENS if isinstance(reader, VLLMLogReader) else "there is no request in it"


def open_trace(
    path: str | Path,
    *,
    trace_format: str = "auto",
    block_tokens: int | None = None,
    tokenizer_name: str = BYTES,
    strict: bool = False,
    on_skip: OnSkip | None = None,
    requests_per_s: float = REQUESTS_PER_S,
) -> Trace:
    """Return a trace. `path` may be packed with gzip, a pipe, or "-": standard input.

    `block_tokens` is how many tokens a hash stands for, if not what is usual for the format, `requests_per_s` how fast
    requests come if it does not say when they came.
    """
    lines = Lines(path)
    chosen = _recognise(lines) if trace_format == "auto" else _format(trace_format)
    tokenize = tokenizer(tokenizer_name)

    def make() -> LineReader:
        return chosen(block_tokens, tokenize, requests_per_s)

    return Trace(lines, make().block_tokens, strict, requests_per_s, make, on_skip)


def _format(name: str) -> type[LineReader]:
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS)
        raise TraceError(f"format {name!r} is not known: {hint}expected auto, {', '.join(FORMATS)}")
    return FORMATS[name]


def _recognise(lines: Lines) -> type[LineReader]:
    looked = {number: line for number, line in enumerate(lines.look(LOOK_LINES), start=1) if line.strip()}
    for line in looked.values():
        for reader in FORMATS.values():
            if reader.recognises(line):
                return reader
    if not looked:
        raise TraceError(f"{lines.name}: the file is empty")
    if any(map(looks_like_log, looked.values())):
        # A server that was busy for long before its first request has told nothing of it in so few lines.
        return VLLMLogReader
    number, line = next(iter(looked.items()))
    try:
        required_object(line)
        why = ""
    except MalformedLine as error:  # perhaps it is cut off
        why = f" (line {number}: {error})"
    raise TraceError(f"{lines.name}: unknown format{why}: expected lines of {', '.join(FORMATS)} (see --format)")
