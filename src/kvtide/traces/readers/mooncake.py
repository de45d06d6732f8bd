"""The format of the Mooncake traces: one JSON object per line, times in milliseconds, one hash per 512 tokens."""

from __future__ import annotations

from kvtide.traces.errors import MalformedLine
from kvtide.traces.readers.base import LineReader, count, json_object, number, required_object
from kvtide.traces.record import TraceRequest


class MooncakeReader(LineReader):
    """`timestamp`, `input_length`, `output_length`, `hash_ids`, and `session_id` if there is one."""

    default_block_tokens = 512

    @staticmethod
    def recognises(line: str) -> bool:
        """Whether it has hash ids."""
        record = json_object(line)
        return record is not None and "hash_ids" in record

    def parse(self, line: str) -> TraceRequest:
        """Read one request."""
        record = required_object(line)
        hashes = record.get("hash_ids")
        if not isinstance(hashes, list) or not all(type(value) is int for value in hashes):
            raise MalformedLine("hash_ids: expected a list of whole numbers")
        session = record.get("session_id")
        return TraceRequest(
            time_s=number(record, "timestamp") / 1000,
            hashes=tuple(hashes),
            prompt_tokens=count(record, "input_length"),
            output_tokens=count(record, "output_length"),
            session=None if session is None else str(session),
        )
