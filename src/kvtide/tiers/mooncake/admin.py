"""What operators can do with a store. It cannot list what it holds, so most of it they cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.tiers.admin import Progress, Verified
from kvtide.tiers.backend import BackendDown
from kvtide.tiers.mooncake.names import ALL_MANIFESTS, ALL_RECORDS
from kvtide.tiers.mooncake.native import check, connect, disconnect
from kvtide.tiers.mooncake.options import MooncakeConfig, parse_place

_DEADLINE_MS = 5000


def inspect(place: str, options: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG001 - it has none
    """Return what is known: that the store can be reached."""
    with _store(place):
        return {"records": None, "bytes": None, "namespaces": []}


def verify(place: str, options: Mapping[str, object], progress: Progress) -> Verified:  # noqa: ARG001 - see below
    """Refuse: there is no way to ask for all records."""
    raise ConfigError(
        "url",
        redacted(place),
        "a place that can list its records; a Mooncake store verifies them when they are read",
    )


def clear(place: str, options: Mapping[str, object], progress: Progress) -> int:  # noqa: ARG001 - it is one call
    """Remove everything of kvtide's. Returns the number of records removed."""
    with _store(place) as store:
        removed = check(store.remove_by_regex(ALL_RECORDS, True))
        check(store.remove_by_regex(ALL_MANIFESTS, True))
    return max(0, removed)


@contextmanager
def _store(place: str) -> Iterator[Any]:
    address = parse_place(place)
    options = {"type": "mooncake", "master": address.master, "metadata": address.metadata, "deadline_ms": _DEADLINE_MS}
    store, is_up = None, True
    try:
        store = connect(MooncakeConfig.model_validate(options))
        yield store
    except BackendDown as down:
        is_up = False
        raise ConfigError("url", redacted(place), f"a store that can be used ({down})") from None
    finally:
        if store is not None:
            disconnect(store, is_up=is_up)
