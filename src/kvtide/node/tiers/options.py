"""The option `--tier` of a node: what engines write in their option `tiers`, as JSON or as names and values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kvtide.errors import ConfigError
from kvtide.tiers.config import TierConfig, parse_tiers

EXAMPLE = "type=disk,path=/var/cache/kvtide,size=500GiB"


def read_tiers(option: str, written: object) -> tuple[TierConfig, ...]:
    """Read texts of the command line, or objects of a file. Raises `ConfigError`; looks at paths, and at no server."""
    several = [written] if isinstance(written, str | Mapping) else written
    if not isinstance(several, Sequence):
        raise ConfigError(option, written, f'a list of tiers, such as ["{EXAMPLE}"]')
    return parse_tiers([_tier(option, each) for each in several], called=option)


def _tier(option: str, written: object) -> object:
    if not isinstance(written, str):
        return written
    if written.lstrip().startswith("{"):
        try:
            return json.loads(written)
        except ValueError as error:
            raise ConfigError(option, "…", f"JSON, and this is not ({error})") from None  # it may have a password
    pairs = [pair.partition("=") for pair in written.split(",")]
    if not all(name.strip() and separator for name, separator, _ in pairs):
        example = f"names and values, such as {EXAMPLE}, or JSON"
        raise ConfigError(option, "…", example)  # it may have a password
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(written: str) -> object:
    """Numbers, true and false are what they look like; everything else is text."""
    words: Mapping[str, object] = {"true": True, "false": False}
    if written in words:
        return words[written]
    return int(written) if written.isascii() and written.isdecimal() else written
