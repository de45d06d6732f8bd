"""JSON that people hand to an option: itself, or a file with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.redaction import redacted


def object_of(option: str, given: str, example: str) -> Mapping[str, object]:
    """Return the object. `given` is JSON, a file with it, or "-" for standard input. Raises `ConfigError`."""
    text = given
    # What is here or in the file is not shown: it may hold a password.
    shown = "…" if any(mark in given for mark in "{[\"'") else redacted(given)
    if not given.lstrip().startswith(("{", "[")):
        try:
            text = sys.stdin.read() if given == "-" else Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(option, shown, f"JSON, or a file with it that can be read ({why})") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(option, shown, f"JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(option, shown, f"an object such as {example}")
    return found
