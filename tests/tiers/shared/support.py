"""What the tests of shared stores have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kvtide.tiers import Namespace, QueuedTier
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.valkey.names import Names
from kvtide.tiers.valkey.opening import tier_of
from kvtide.tiers.valkey.options import ValkeyConfig
from tests.tiers.shared.servers import PATIENCE_S
from tests.tiers.support import NAMESPACE

_numbers = itertools.count()
DEADLINE_MS = 10_000
"""Far above what a busy machine needs, and below `PATIENCE_S`. Tests that meet a deadline set their own."""


def fresh_namespace() -> Namespace:
    """Return a namespace that no other test uses: its store is empty, though the server is shared."""
    return replace(NAMESPACE, model=f"test {next(_numbers)}")


def valkey_config(url: str, **options: object) -> ValkeyConfig:
    (config,) = parse_tiers([{"type": "valkey", "url": url, "deadline_ms": DEADLINE_MS, **options}])
    assert isinstance(config, ValkeyConfig)
    return config


@contextmanager
def valkey_tier(url: str, namespace: Namespace | None = None, **options: object) -> Iterator[QueuedTier]:
    tier = tier_of(valkey_config(url, **options), namespace or fresh_namespace())
    try:
        yield tier
    finally:
        assert tier.close(PATIENCE_S)


def record_names(client: Any, namespace: Namespace) -> list[bytes]:
    """Return the names of all records of a namespace that a server has, of whatever generation."""
    return sorted(client.scan_iter(match=Names(namespace.digest).records()))
