"""Logs of chat completion requests: one JSON object per line, with `messages` as the API takes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from kvtide.traces.errors import MalformedLine
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.readers.base import LineReader, json_object, required_object
from kvtide.traces.record import TraceRequest

TIMES = ("timestamp", "created", "time")
SESSIONS = ("session_id", "conversation_id", "user")


class OpenAIChatReader(LineReader):
    """`messages` at the top or in `body` (batch files), a time, and `usage` or the answer if they were logged.

    Lines of batch files have no time: they are taken to come at a steady rate. Roles and texts are put together in a
    plain way. What matters is that equal beginnings stay equal.
    """

    default_block_tokens = 16

    _begin_s: float | None = None

    @staticmethod
    def recognises(line: str) -> bool:
        """Whether it has messages, or is a line of a batch file."""
        record = json_object(line)
        return record is not None and (isinstance(_body(record).get("messages"), list) or _is_batch(record))

    def parse(self, line: str) -> TraceRequest:
        """Read one request. Times count from the first one."""
        record = required_object(line)
        tokens = self._tokens(_body(record))
        time_s = self._time_s(record)
        sources = (record, _body(record))
        session = next((one[name] for one in sources for name in SESSIONS if one.get(name) is not None), None)
        return TraceRequest(
            time_s=time_s,
            hashes=prefix_hashes(tokens, self.block_tokens),
            prompt_tokens=len(tokens),
            output_tokens=self._output_tokens(record),
            session=None if session is None else str(session),
        )

    def _tokens(self, body: Mapping[str, object]) -> list[int]:
        """Return the prompt: of a chat, or of a completion, as text or as token ids."""
        prompt = body.get("prompt")
        if "messages" in body or prompt is None:
            return self.tokenize(_text(body.get("messages")))
        if isinstance(prompt, list) and all(type(token) is int for token in prompt):
            return prompt
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        raise MalformedLine("prompt: expected a text or token ids")

    def _time_s(self, record: Mapping[str, object]) -> float:
        if _is_batch(record) and not any(name in record for name in TIMES):
            self.untimed += 1
            return (self.untimed - 1) / self.requests_per_s
        time_s = _time_s(record)
        if self._begin_s is None:
            self._begin_s = time_s
        return time_s - self._begin_s

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


def _is_batch(record: Mapping[str, object]) -> bool:
    """Whether it is a line of a batch file: `custom_id`, `method`, `url` and the request itself as `body`."""
    return "custom_id" in record and isinstance(record.get("body"), dict)


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
                raise MalformedLine(f"{name}={value!r}: expected seconds or an ISO date", "bad time") from None
    raise MalformedLine(f"no time: expected one of {', '.join(TIMES)}", "no time")
