"""The log of a vLLM server with `--enable-log-requests` at log level DEBUG, which has the token ids of prompts.

vLLM's KV events do not carry what is needed: they tell what was stored, not which request used it again.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

from kvtide.traces.errors import MalformedLine
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.readers.base import LineReader
from kvtide.traces.record import TraceRequest

_REQUEST = re.compile(r"Request (?P<id>\S+) details: prompt: .*prompt_token_ids: (?P<tokens>\[[^\]]*\]|None)")
_LOG_LINE = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\.py:\d+\]")
"""How every line of vLLM's log begins, but for the name of the process."""
WITHOUT_TOKENS = (
    "this is a log of vLLM without the token ids of requests: start the server with --enable-log-requests and with log "
    "level DEBUG (--log-level DEBUG, or VLLM_LOGGING_LEVEL=DEBUG in its environment), and without --max-log-len"
)
_TIME = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")
_LEAP_YEAR = "2000-"
"""Lines have no year. One in which every day exists."""
_YEAR = timedelta(days=366)


class VLLMLogReader(LineReader):
    """Lines of other kinds are passed over. How long outputs were is not logged with requests: they count as 0."""

    default_block_tokens = 16

    _begin: datetime | None = None

    @staticmethod
    def recognises(line: str) -> bool:
        """Whether it tells the token ids of a request."""
        return _REQUEST.search(line) is not None

    def parse(self, line: str) -> TraceRequest | None:
        """Read one request."""
        request = _REQUEST.search(line)
        if request is None:
            return None
        if request["tokens"] == "None":
            raise MalformedLine(f"request {request['id']}: no token ids were logged", "no token ids were logged")
        when = _TIME.search(line[: request.start()])
        if when is None:
            raise MalformedLine(f"request {request['id']}: no time at the beginning of the line", "no time")
        tokens = json.loads(request["tokens"])
        return TraceRequest(self._seconds(when[1]), prefix_hashes(tokens, self.block_tokens), len(tokens), 0)

    def _seconds(self, text: str) -> float:
        """Return the time since the first request; a log may go on over New Year."""
        try:
            when = datetime.strptime(_LEAP_YEAR + text, "%Y-%m-%d %H:%M:%S")
        except ValueError:
            raise MalformedLine(f"time {text!r}: expected month, day and time", "bad time") from None
        if self._begin is None:
            self._begin = when
        since = when - self._begin
        return (since + _YEAR if since < -_YEAR / 2 else since).total_seconds()


def looks_like_log(line: str) -> bool:
    """Whether vLLM wrote this line, whatever it tells."""
    return _LOG_LINE.search(line) is not None
