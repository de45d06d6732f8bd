"""The interface of a reader, and what readers of JSON share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping

from kvtide.traces.errors import MalformedLine
from kvtide.traces.record import TraceRequest
from kvtide.traces.tokenizers import Tokenize

REQUESTS_PER_S = 1.0
"""Of traces without times, if nothing else is said."""


class LineReader(ABC):
    """Makes requests of lines. Keeps next to nothing between lines: a trace may be longer than memory."""

    default_block_tokens: int

    def __init__(self, block_tokens: int | None, tokenize: Tokenize, requests_per_s: float = REQUESTS_PER_S) -> None:
        """`requests_per_s` is how fast requests are taken to come if lines do not say when they came."""
        self.block_tokens = block_tokens or self.default_block_tokens
        self.tokenize = tokenize
        self.requests_per_s = requests_per_s
        self.untimed = 0
        """Requests that have no time of their own."""

    @staticmethod
    @abstractmethod
    def recognises(line: str) -> bool:
        """Whether a line looks like this format."""

    @abstractmethod
    def parse(self, line: str) -> TraceRequest | None:
        """Return the request of a line, or None for a line that is not about a request."""


def json_object(line: str) -> Mapping[str, object] | None:
    """Return a line as a JSON object, or None if it is something else."""
    try:
        return required_object(line)
    except MalformedLine:
        return None


def required_object(line: str) -> Mapping[str, object]:
    """Return a line as a JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedLine("not valid JSON") from None
    if not isinstance(value, dict):
        raise MalformedLine("not a JSON object")
    return value


def number(record: Mapping[str, object], name: str) -> float:
    """Return a number of a record."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedLine(f"{name}={value!r}: expected a number", f"{name} is no number")
    return value


def count(record: Mapping[str, object], name: str) -> int:
    """Return a whole number of a record."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedLine(f"{name}={value!r}: expected a whole number", f"{name} is no whole number")
    return value
