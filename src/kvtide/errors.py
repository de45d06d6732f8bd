"""Errors that callers can meet.

All that kvtide raises on purpose is in this tree:

    KVTideError
    ├── ConfigError      an option is wrong: names the option, the value and what was expected
    ├── RequestRefused   one request cannot be served; the others go on
    ├── ProtocolError    the engine called kvtide in an order that has no meaning
    ├── CopyError        bytes could not be moved; always reported as a failed transfer
    └── StillCopying     memory cannot be given back now: copies that run have not ended in time
"""

from __future__ import annotations

import traceback


class KVTideError(Exception):
    """Base of everything kvtide raises on purpose."""


class ConfigError(KVTideError, ValueError):
    """An option has a value that cannot work. Raised before anything is allocated."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        self.option = option
        self.value = value
        self.expected = expected
        super().__init__(f"{option}={value!r}: expected {expected}")


class RequestRefused(KVTideError, ValueError):
    """A request can never be served by this engine as it is configured."""

    def __init__(self, request_id: str, why: str) -> None:
        self.request_id = request_id
        self.why = why
        super().__init__(f"request {request_id!r} refused: {why}")


class ProtocolError(KVTideError, RuntimeError):
    """The engine reported an event that cannot happen in the request's state: a bug in the integration."""


class CopyError(KVTideError, OSError):
    """A copy between device and host did not happen."""


class StillCopying(KVTideError, RuntimeError):
    """Memory was to be given back that copies still read or write. Nothing was done; it may be asked for again."""


def describe(error: BaseException) -> str:
    """Return an exception as text, for reports and logs.

    Not `str(error)`, which is code of the exception's own and may raise in turn.
    """
    return "".join(traceback.format_exception_only(error)).strip()
