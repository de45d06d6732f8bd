"""Errors that callers can meet.

Those of traces are in `kvtide.traces.errors`, all others here:

    KVTideError
    ├── ConfigError      an option is wrong: names the option, the value and what was expected
    ├── RequestRefused   one request cannot be served; the others go on
    ├── ProtocolError    the engine called kvtide in an order that has no meaning
    ├── CopyError        bytes could not be copied; copy engines report it as a failed transfer
    └── StillCopying     memory cannot be given back yet: copies still use it
"""

from __future__ import annotations

import traceback

from kvtide.redaction import without_secrets


class KVTideError(Exception):
    """Base of everything kvtide raises on purpose."""


class ConfigError(KVTideError, ValueError):
    """An option has a value that cannot work. Raised before anything is allocated.

    Secrets in the value are left out: errors go to logs.
    """

    def __init__(self, option: str, value: object, expected: str) -> None:
        self.option = option
        self.value = without_secrets(option, value)
        self.expected = expected
        # What was left out has no value: nobody wrote "None".
        super().__init__(f"{option if value is None else f'{option}={self.value!r}'}: expected {expected}")


class RequestRefused(KVTideError, ValueError):
    """A request can never be served by this engine as it is configured."""

    def __init__(self, request_id: str, why: str) -> None:
        self.request_id = request_id
        self.why = why
        super().__init__(f"request {request_id!r} refused: {why}")


class ProtocolError(KVTideError, RuntimeError):
    """The engine called kvtide in an order that has no meaning: a bug in the integration."""


class CopyError(KVTideError, OSError):
    """Bytes could not be copied between device and host."""


class StillCopying(KVTideError, RuntimeError):
    """Memory that copies still read or write cannot be given back. Nothing was done; ask again later."""


def describe(error: BaseException) -> str:
    """Return an exception as text, for reports and logs.

    Not by `str(error)`, which runs code of the exception and may raise.
    """
    return "".join(traceback.format_exception_only(error)).strip()
