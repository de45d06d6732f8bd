"""What may be shown of what people wrote: never a password, also where it was written in the wrong place."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "***"

_SECRET = re.compile(r"pas+w|pass|secret|(?<!per-)token(?!s|i)|_key|^key", re.IGNORECASE)
"""In the name of an option. `min_load_tokens`, `--bytes-per-token` and `--tokenizer` are about other tokens."""
_NAMES_A_FILE = re.compile(r"_file$|^tls_key$")
_PATH = re.compile(r"(/|~/|\.{1,2}/).*", re.DOTALL)
_NAMES_A_VARIABLE = re.compile(r"_env$")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")
_PASSWORD_IN_QUERY = re.compile(r"([?&]pass\w*=).*", re.IGNORECASE | re.DOTALL)


def without_secrets(option: str, value: object) -> object:
    """Return the value of an option as it may be shown, with all that is in it.

    >>> without_secrets("tiers", [{"url": "valkey://kv:word@cache", "password": "word"}])
    [{'url': 'valkey://kv:***@cache', 'password': '***'}]
    """
    shown = _shown(option, value)
    return value if shown == value else shown


def _shown(option: str, value: object) -> object:
    name = option.rpartition(".")[2].lstrip("-")
    if value in (None, ""):
        return value
    if _SECRET.search(name) and not _says_where(name, value):
        return HIDDEN
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: _shown(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_shown(name, each) for each in value)
    return value


def _says_where(name: str, value: object) -> bool:
    """Whether a value says where a secret is. People write the secret itself there, too."""
    if not isinstance(value, str):
        return False
    if _NAMES_A_FILE.search(name):
        return _PATH.fullmatch(value) is not None
    return _NAMES_A_VARIABLE.search(name) is not None and _VARIABLE.fullmatch(value) is not None


def redacted(url: str) -> str:
    """Return a URL as it may be shown, also one that is written wrongly: its password is not in it."""
    head, at, tail = url.rpartition("@")
    scheme, separator, who = head.partition("://") if "://" in head else ("", "", head)
    user, colon, _ = who.partition(":")
    shown = f"{scheme}{separator}{user}{':***' if colon else ''}{at}{tail}"
    return _PASSWORD_IN_QUERY.sub(r"\1***", shown)
