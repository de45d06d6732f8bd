"""Logs of chat completion requests: one JSON object per line, with `messages` as the API takes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kvtide.traces.errors import MalformedLine
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.readers.base import LineReader, json_object, required_object
from kvtide.traces.record import TraceRequest
from kvtide.traces.tokenizers import Tokenize

TIMES = ("timestamp", "created", "time")
SESSIONS = ("session_id", "conversation_id", "user")


class OpenAIChatReader(LineReader):
    """`messages` at the top or in `body` (as in batch files), a time, and `usage` or the answer if they were logged.

    Roles and texts are put together in a plain way. What matters is that equal beginnings stay equal.
    """

    default_block_tokens = 16

    def __init__(self, block_tokens: int | None, tokenize: Tokenize) -> None:
        super().__init__(block_tokens, tokenize)
        self._begin_s: float | None = None

    @staticmethod
    def recognises(line: str) -> bool:
        """Whether it has messages."""
        record = json_object(line)
        return record is not None and isinstance(_body(record).get("messages"), list)

    def parse(self, line: str) -> TraceRequest:
        """Read one request. Times count from the first one."""
        record = required_object(line)
        tokens = self.tokenize(_text(_body(record).get("messages")))
        time_s = _time_s(record)
        if self._begin_s is None:
            self._begin_s = time_s
        session = next((record[name] for name in SESSIONS if record.get(name) is not None), None)
        return TraceRequest(
            time_s=time_s - self._begin_s,
            hashes=prefix_hashes(tokens, self.block_tokens),
            prompt_tokens=len(tokens),
            output_tokens=self._output_tokens(record),
            session=None if session is None else str(session),
        )

    def _output_tokens(self, record: Mapping[str, object]) -> int:
        response = record.get("response")
        for holder in (record, response):
            usage = holder.get("usage") if isinstance(holder, dict) else None
            tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
            if type(tokens) is int:
                return tokens
        return len(self.tokenize(response)) if isinstance(response, str) else 0


def _body(record: Mapping[str, object]) -> Mapping[str, object]:
    body = record.get("body")
    return body if isinstance(body, dict) else record


def _text(messages: object) -> str:
    if not isinstance(messages, list):
        raise MalformedLine("messages: expected a list")
    return "".join(f"<|{_role(message)}|>{_content(message)}" for message in messages)


def _role(message: object) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise MalformedLine("messages: expected objects with a role")
    return str(message["role"])


def _content(message: Mapping[str, object]) -> str:
    """Return the text of a message: a string, or parts of which only texts count."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _time_s(record: Mapping[str, object]) -> float:
    for name in TIMES:
        value = record.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
            except ValueError:
                raise MalformedLine(f"{name}={value!r}: expected seconds or an ISO date") from None
    raise MalformedLine(f"no time: expected one of {', '.join(TIMES)}")
